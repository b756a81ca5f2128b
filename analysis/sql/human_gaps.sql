-- When did an agent that names itself wait between two of its runs for the person to come back?
with runs as (
    select variant, agent, start_ns, max(stop_ns) over (
        partition by variant, agent order by start_ns, stop_ns rows between unbounded preceding and 1 preceding
    ) as reached_ns
    from intervals
    where kind = 'agent' and names_agent
)
select variant, agent, reached_ns as start_ns, start_ns as stop_ns
from runs
where start_ns > reached_ns
