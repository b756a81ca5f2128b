-- Who owns the parents, what is around whatever is inside them, and which tool and model calls are they and their own
-- parents? Walks down from those whose parent is not in the data, so each is met once; spans whose parents form a
-- circle are met by nobody. What is nobody's parent, as most spans are, does not take part.
with recursive links as (
    select child.*, parent.id as parent_id
    from parents as child
    left join parents as parent on parent.trace_key = child.trace_key and parent.span_key = child.parent_key
),
tree as (
    select
        id, trace_key, span_key,
        case when kind = 'agent' then own_agent end as run_agent,
        case when kind <> 'other' then coalesce(own_agent, trace_id) end as nearest_agent,
        case when kind in ('tool', 'model') then [id] else []::bigint[] end as path
    from links
    where parent_id is null
    union all
    select
        child.id, child.trace_key, child.span_key,
        case when child.kind = 'agent' then child.own_agent else up.run_agent end,
        case when child.kind <> 'other' then coalesce(child.own_agent, up.run_agent, child.trace_id)
             else up.nearest_agent end,
        case when child.kind in ('tool', 'model') then list_append(up.path, child.id) else up.path end
    from tree as up
    join links as child on child.parent_id = up.id
)
select * from tree
