-- How long do the calls of each tool take? Open calls count up to their last sign of life, but have no quantiles.
select
    name as tool,
    count(*) as calls,
    count(*) filter (where end_ns is null) as open_calls,
    sum(stop_ns - start_ns)::bigint as total_ns,
    quantile_cont(stop_ns - start_ns, [0.5, 0.9, 0.99]) filter (where end_ns is not null) as quantiles_ns,
    count(*) filter (where end_ns is not null and stop_ns - start_ns < $round_trip_ns) as short_calls
from spans
where kind = 'tool'
group by name
order by total_ns desc, calls desc, tool
