-- Whose are the tool calls, model calls, agent runs and waits for a person, and when were they?
-- Only what is asked of all of them; "spans" has the rest.
select
    child.id,
    coalesce(child.own_agent, up.run_agent, child.trace_id) as agent,
    -- An agent run inside its own agent's run continues it and has no parent.
    nullif(
        case when child.kind = 'agent' then coalesce(child.parent_agent_id, up.nearest_agent) end,
        coalesce(child.own_agent, up.run_agent, child.trace_id)
    ) as parent_agent,
    child.kind, child.name, child.agent_name, child.trace_key, child.call_key, child.start_ns, child.end_ns,
    -- An end before its start says nothing about a length: such a span has none.
    greatest(child.start_ns, coalesce(child.end_ns, child.alive_ns)) as stop_ns,
    case when len(up.path) > 0 then up.path end as around,
    child.running and child.end_ns is null as running,
    child.agent_id is not null as names_agent,
    child.confidence = 'derived' as derived,
    case when child.kind = 'model' then child.input_tokens + coalesce(child.output_tokens, 0) end as tokens
from kept as child
left join lineage as up on up.trace_key = child.trace_key and up.span_key = child.parent_key
where child.kind <> 'other' and child.start_ns is not null
