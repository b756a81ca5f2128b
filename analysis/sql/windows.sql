-- How long are the windows in which agents are blocked on tools?
select
    count(*) as windows,
    quantile_cont(stop_ns - start_ns, [0.1, 0.25, 0.5, 0.75, 0.9, 0.99]) as quantiles_ns,
    count(*) filter (where stop_ns - start_ns < $round_trip_ns) as short_windows,
    coalesce(sum(stop_ns - start_ns) filter (where stop_ns - start_ns < $round_trip_ns), 0)::bigint as short_ns
from contexts
