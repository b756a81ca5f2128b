-- What are the tool calls, model calls, agent runs and waits for a person, in normal form?
-- A sub-agent's run is a tool call of its parent as well, unless a tool call of the parent already holds it.
with own as (
    select
        links.id, source, agent, parent_agent, kind, name, agent_name, call_id, trace_id, span_id, parent_span_id,
        start_ns, end_ns, alive_ns, first_token_ns, queued_unix_ns, error, confidence, around, running,
        agent_id is not null as names_agent,
        -- An end before its start says nothing about a length: such a span has none.
        greatest(start_ns, coalesce(end_ns, alive_ns)) as stop_ns
    from links
    join lineage using (id)
    where kind <> 'other' and start_ns is not null
),
inside_call as (
    select distinct run.id
    from (select id, parent_agent, unnest(around) as outer_id from own where kind = 'agent') as run
    join own as outer_call on outer_call.id = run.outer_id
    where outer_call.kind = 'tool' and outer_call.agent = run.parent_agent
),
delegated as (
    select own.* replace (
        -own.id as id, own.parent_agent as agent, null as parent_agent, 'tool' as kind, 'agent:' || own.name as name,
        null as agent_name, null as queued_unix_ns, false as names_agent
    )
    from own
    where kind = 'agent'
      and parent_agent in (select agent from own)
      and id not in (select id from inside_call)
)
select * from own
union all
select * from delegated
