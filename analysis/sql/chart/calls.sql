-- Which calls, runs and waits does each agent have, and which of its tool calls started which sub-agent's run?
with started as (
    select coalesce(outer_call.id, -run.id) as id, list(run.id order by run.id) as runs
    from spans as run
    left join spans as outer_call
        on list_contains(run.around, outer_call.id) and outer_call.kind = 'tool' and outer_call.agent = run.parent_agent
    where run.kind = 'agent' and run.parent_agent is not null
    group by all
)
select spans.id, agent, kind, name, start_ns, stop_ns, end_ns is null as still_open, error,
       coalesce(started.runs, []) as starts_runs, kind = 'agent' and parent_agent is not null as is_started
from spans
left join started on started.id = spans.id
where kind in ('tool', 'model', 'agent', 'human')
order by agent, kind, start_ns, stop_ns desc, spans.id
