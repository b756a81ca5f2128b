-- When did an agent wait between two of its runs for the person to come back?
-- Every run of an agent that names itself is a turn. Of an agent known by its conversation a turn is all it did in one
-- trace, since between its runs there other agents of the conversation may have worked.
with turns as (
    select variant, agent, start_ns, stop_ns
    from intervals
    where kind = 'agent' and names_agent
    union all
    select i.variant, i.agent, min(i.start_ns) as start_ns, max(i.stop_ns) as stop_ns
    from intervals as i
    join calls on calls.id = i.id
    where i.kind = 'agent' and not i.names_agent and calls.kind = 'agent'
    group by i.variant, i.agent, calls.trace_key
),
runs as (
    select variant, agent, start_ns, max(stop_ns) over (
        partition by variant, agent order by start_ns, stop_ns rows between unbounded preceding and 1 preceding
    ) as reached_ns
    from turns
)
select variant, agent, reached_ns as start_ns, start_ns as stop_ns
from runs
where start_ns > reached_ns
