-- What does each agent's state timeline look like, as maximal runs of one state?
-- Slices leave no gaps, so a run lasts until the next one begins, and the last one as long as the agent.
with marked as (
    select *,
           state is distinct from lag(state) over (partition by variant, agent order by start_ns) as begins,
           last_value(stop_ns) over (
               partition by variant, agent order by start_ns
               rows between unbounded preceding and unbounded following
           ) as last_ns
    from slices
)
select variant, agent, state, start_ns,
       coalesce(lead(start_ns) over (partition by variant, agent order by start_ns), last_ns) as stop_ns
from marked
where begins
