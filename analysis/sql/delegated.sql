-- Which runs of sub-agents are calls of their parents? All but those that a tool call of the parent already holds, and
-- those of a parent that calls nothing itself: a workflow around its agents has no cache that could wait for them.
with inside_call as (
    select distinct run.id
    from (select id, parent_agent, unnest(around) as outer_id from owned where kind = 'agent') as run
    join owned as outer_call on outer_call.id = run.outer_id
    where outer_call.kind = 'tool' and outer_call.agent = run.parent_agent
)
select owned.* replace (
    -owned.id as id, owned.parent_agent as agent, null as parent_agent, 'tool' as kind, 'agent:' || owned.name as name,
    null as agent_name, null as call_key, false as names_agent
)
from owned
where kind = 'agent'
  and parent_agent in (select agent from owned where kind in ('tool', 'model'))
  and id not in (select id from inside_call)
