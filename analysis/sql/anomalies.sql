-- What in the data is odd enough to be said beside the figures?
with orphans as (
    select parents.id is not null as parent_known
    from kept as child
    left join lineage as up on up.trace_key = child.trace_key and up.span_key = child.parent_key
    left join parents on parents.trace_key = child.trace_key and parents.span_key = child.parent_key
    where child.parent_key is not null and up.id is null
)
select
    (select count(*) from records where end_ns is not null) - count(*) filter (where end_ns is not null) as duplicates,
    count(*) filter (where kind <> 'other' and start_ns is null) as untimed,
    count(*) filter (where kind <> 'other' and end_ns < start_ns) as backward,
    count(*) filter (where kind <> 'other' and end_ns = start_ns) as zero_length,
    count(*) filter (where kind <> 'other' and start_ns is not null and end_ns is null) as unended,
    count(*) filter (where kind <> 'other' and agent_unknown) as agent_unknown,
    (select count(*) from calls where repeats) as repeated_calls,
    (select count(*) from orphans where not parent_known) as parent_missing,
    (select count(*) from orphans where parent_known) as parent_circular,
    (select count(*) from (select agent from calls group by agent having count(*) filter (where kind in ('tool', 'model')) = 0))
        as idle_agents
from kept
