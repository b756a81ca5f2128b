-- What does each agent's state timeline look like, as maximal runs of one state?
with marked as (
    select *, state is distinct from lag(state) over (partition by variant, agent order by start_ns) as begins
    from slices
),
numbered as (
    select *, sum(begins::int) over (partition by variant, agent order by start_ns rows unbounded preceding) as run
    from marked
)
select variant, agent, any_value(state) as state, min(start_ns) as start_ns, max(stop_ns) as stop_ns
from numbered
group by variant, agent, run
