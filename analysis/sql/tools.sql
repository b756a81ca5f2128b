-- How long do the calls of each tool take? Open calls count up to their last sign of life, but have no quantiles.
-- Calls of which only the length is known stand on no timeline, but here they do.
with lengths as (
    select name, length_ns, is_open from tool_calls
    union all
    select name, lasted_ns, false from untimed
)
select
    name as tool,
    count(*) as calls,
    count(*) filter (where is_open) as open_calls,
    sum(length_ns)::bigint as total_ns,
    quantile_cont(length_ns, [0.1, 0.25, 0.5, 0.75, 0.9, 0.99]) filter (where not is_open) as quantiles_ns,
    count(*) filter (where not is_open and length_ns < $round_trip_ns) as short_calls,
    coalesce(sum(length_ns) filter (where not is_open), 0)::bigint as ended_ns,
    count(*) filter (where not is_open and length_ns > $round_trip_ns) as long_calls,
    coalesce(sum(length_ns - $round_trip_ns) filter (where not is_open and length_ns > $round_trip_ns), 0)::bigint
        as freed_ns
from lengths
group by name
order by total_ns desc, calls desc, tool
