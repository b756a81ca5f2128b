-- What share of its last five cycles has each agent been idle at the end of each of its waits?
-- A cycle is what was generated since the wait before, and the wait; one still open counts up to its last sign of life.
with so_far as (
    select agent, state, start_ns,
           sum(case when state = 'blocked_tool' then stop_ns - start_ns else 0 end) over passed as blocked_ns,
           sum(stop_ns - start_ns) over passed as cycles_ns
    from timeline
    where variant = 'seen' and state in ('blocked_tool', 'generating')
    window passed as (partition by agent order by start_ns rows unbounded preceding)
),
recent as (
    select agent, start_ns,
           blocked_ns - coalesce(lag(blocked_ns, 5) over waits, 0) as blocked_ns,
           cycles_ns - coalesce(lag(cycles_ns, 5) over waits, 0) as cycles_ns
    from so_far
    where state = 'blocked_tool'
    window waits as (partition by agent order by start_ns)
),
shares as (
    select agent, start_ns, blocked_ns::double / cycles_ns as idleness from recent
)
select agent, arg_max(idleness, start_ns) as last, median(idleness) as median
from shares
group by agent
