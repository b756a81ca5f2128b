-- How are the blocked windows spread over a logarithmic scale, in quarters of a decade of nanoseconds?
-- The hair's breadth added keeps a window of exactly 10 ms out of the bin below, whatever logarithm a database has.
select
    cast(floor(4 * log10(greatest(stop_ns - start_ns, 1)) + 0.000000001) as bigint) as bin,
    count(*) as windows,
    sum(stop_ns - start_ns)::bigint as blocked_ns
from contexts
group by bin
order by bin
