-- What in the data is odd, trace by trace?
with orphans as (
    select child.trace_key, parents.id is not null as parent_known
    from kept as child
    left join lineage as up on up.trace_key = child.trace_key and up.span_key = child.parent_key
    left join parents on parents.trace_key = child.trace_key and parents.span_key = child.parent_key
    where child.parent_key is not null and up.id is null
),
idle as (
    select agent, min(trace_key) as trace_key,
           agent in (select parent_agent from owned where parent_agent is not null) as holds
    from owned
    group by agent
    having count(*) filter (where kind in ('tool', 'model')) = 0
),
told as (
    select trace_key,
        count(*) filter (where start_ns is null) as untimed,
        count(*) filter (where end_ns < start_ns) as backward,
        count(*) filter (where end_ns = start_ns) as zero_length,
        count(*) filter (where start_ns is not null and end_ns is null) as unended,
        count(*) filter (where agent_unknown) as agent_unknown
    from kept
    where kind <> 'other' and (start_ns is null or end_ns is null or end_ns <= start_ns or agent_unknown)
    group by trace_key
)
select trace_key, 'untimed' as what, untimed as number from told
union all
select trace_key, 'backward', backward from told
union all
select trace_key, 'zero_length', zero_length from told
union all
select trace_key, 'unended', unended from told
union all
select trace_key, 'agent_unknown', agent_unknown from told
union all
select trace_key, 'duplicates', count(*) from records semi join superseded using (row) where end_ns is not null
group by trace_key
union all
select trace_key, 'repeated_calls', count(*) from calls where repeats group by trace_key
union all
select trace_key, case when parent_known then 'parent_circular' else 'parent_missing' end, count(*)
from orphans
group by trace_key, parent_known
union all
select trace_key, case when holds then 'containers' else 'idle_agents' end, 1 from idle
