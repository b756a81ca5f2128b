-- Which calls were seen twice, by a framework and by an instrumentation below it? Their time is united, but they count
-- once: a model call that only wraps others of its agent, a tool call directly inside one of the same name, and a tool
-- call that overlaps another of the same call id.
with nested as (
    select inner_call.id, outer_call.id as outer_id, inner_call.kind, inner_call.name = outer_call.name as same_name
    from (
        select id, agent, kind, name, around[len(around)] as outer_id
        from owned
        where kind in ('tool', 'model') and around is not null
    ) as inner_call
    join owned as outer_call
      on outer_call.id = inner_call.outer_id and outer_call.agent = inner_call.agent
     and outer_call.kind = inner_call.kind
),
wrapped as (
    select distinct case when kind = 'model' then outer_id else id end as id
    from nested
    where kind = 'model' or same_name
),
answering as (
    select id, agent, call_key, start_ns, stop_ns
    from owned
    where kind = 'tool' and call_key is not null and id not in (select id from wrapped)
),
shared as (
    select agent, call_key from answering group by agent, call_key having count(*) > 1
),
reached as (
    select id, answering.start_ns, max(stop_ns) over (
        partition by agent, call_id order by answering.start_ns, stop_ns desc, trace_id, span_id
        rows between unbounded preceding and 1 preceding
    ) as reached_ns
    from answering
    semi join shared using (agent, call_key)
    join (select id, call_id, trace_id, span_id from kept) as told using (id)
)
select id from wrapped
union
select id from reached where start_ns < reached_ns
