-- How long do the calls of each tool take? Open calls count up to their last sign of life, but have no quantiles.
-- Calls of which only the length is known stand on no timeline, but here they do.
with calls as (
    select name, start_ns, stop_ns, end_ns from calls where kind = 'tool' and not repeats
    union all
    select name, 0, lasted_ns, lasted_ns from kept where kind = 'tool' and start_ns is null and lasted_ns is not null
)
select
    name as tool,
    count(*) as calls,
    count(*) filter (where end_ns is null) as open_calls,
    sum(stop_ns - start_ns)::bigint as total_ns,
    quantile_cont(stop_ns - start_ns, [0.1, 0.25, 0.5, 0.75, 0.9, 0.99]) filter (where end_ns is not null) as quantiles_ns,
    count(*) filter (where end_ns is not null and stop_ns - start_ns < $round_trip_ns) as short_calls,
    coalesce(sum(stop_ns - start_ns) filter (where end_ns is not null), 0)::bigint as ended_ns,
    count(*) filter (where end_ns is not null and stop_ns - start_ns > $round_trip_ns) as long_calls,
    coalesce(sum(stop_ns - start_ns - $round_trip_ns) filter (
        where end_ns is not null and stop_ns - start_ns > $round_trip_ns
    ), 0)::bigint as freed_ns
from calls
group by name
order by total_ns desc, calls desc, tool
