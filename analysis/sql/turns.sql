-- What did the first agents do, turn by turn: generate, wait for which tool, and pause before the next model call?
-- Time of persons and of queues is left out; a turn ends where a wait does.
with chosen as (
    select agent
    from spans
    where kind in ('tool', 'model')
    group by agent
    order by min(start_ns), agent
    limit $agents
),
runs as (
    select agent, state, start_ns, stop_ns,
           coalesce(sum((state = 'blocked_tool')::int) over (
               partition by agent order by start_ns rows between unbounded preceding and 1 preceding
           ), 0) as turn
    from timeline
    where variant = 'seen' and agent in (select agent from chosen)
),
called as (
    select w.agent, w.turn, arg_min(s.name, (s.start_ns, s.span_id)) as tool
    from runs as w
    join spans as s on s.agent = w.agent and s.start_ns <= w.start_ns and s.stop_ns > w.start_ns
    where w.state = 'blocked_tool' and s.kind = 'tool'
    group by w.agent, w.turn
),
turns as (
    select agent, turn,
           coalesce(sum(stop_ns - start_ns) filter (where state = 'generating'), 0)::bigint as generating_ns,
           coalesce(sum(stop_ns - start_ns) filter (where state = 'blocked_tool'), 0)::bigint as blocked_ns,
           coalesce(sum(stop_ns - start_ns) filter (where state = 'overhead'), 0)::bigint as paused_ns,
           max(start_ns) filter (where state = 'blocked_tool') as wait_start_ns
    from runs
    group by agent, turn
)
select turns.agent, turns.generating_ns, turns.blocked_ns, turns.paused_ns, called.tool, contexts.tokens
from turns
left join called on called.agent = turns.agent and called.turn = turns.turn
left join contexts on contexts.agent = turns.agent and contexts.start_ns = turns.wait_start_ns
order by turns.agent, turns.turn
