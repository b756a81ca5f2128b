-- Who owns each span, and which tool and model calls is it inside of?
-- Walks down from the spans whose parent is not in the data, so each span is met once; spans whose parents form
-- a circle are met by nobody and stand alone.
with recursive tree as (
    select
        id,
        coalesce(own_agent, trace_id) as agent,
        null::varchar as around_agent,
        case when kind = 'agent' then own_agent end as run_agent,
        case when kind <> 'other' then coalesce(own_agent, trace_id) end as nearest_agent,
        []::bigint[] as around,
        case when kind in ('tool', 'model') then [id] else []::bigint[] end as path
    from links
    where parent_id is null
    union all
    select
        child.id,
        coalesce(child.own_agent, up.run_agent, child.trace_id),
        up.nearest_agent,
        case when child.kind = 'agent' then child.own_agent else up.run_agent end,
        case when child.kind <> 'other' then coalesce(child.own_agent, up.run_agent, child.trace_id)
             else up.nearest_agent end,
        up.path,
        case when child.kind in ('tool', 'model') then list_append(up.path, child.id) else up.path end
    from tree as up
    join links as child on child.parent_id = up.id
)
select
    links.id,
    coalesce(tree.agent, own_agent, trace_id) as agent,
    -- An agent run inside its own agent's run continues it and has no parent.
    nullif(
        case when kind = 'agent' then coalesce(parent_agent_id, tree.around_agent) end,
        coalesce(tree.agent, own_agent, trace_id)
    ) as parent_agent,
    coalesce(tree.around, []::bigint[]) as around,
    parent_id is null and parent_span_id is not null as parent_missing,
    tree.id is null as parent_circular
from links
left join tree using (id)
