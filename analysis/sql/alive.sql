-- Until when is each process known to have lived, and does it still?
select seen.process, greatest(seen.latest_ns, coalesce(processes.last_sign_ns, 0)) as alive_ns,
       coalesce(processes.running, false) as running
from (
    select process, max(greatest(coalesce(start_ns, 0), coalesce(end_ns, 0))) as latest_ns
    from records
    group by process
) as seen
left join processes using (process)
