-- When was a model call waiting for admission or for its cache to come back?
with pairs as (
    select calls.id, calls.agent, told.span_id, calls.start_ns as call_start_ns, stop_ns as call_stop_ns, queued_unix_ns,
           unnest(range(1, len(queued_unix_ns), 2)) as i
    from calls
    join (select id, span_id, queued_unix_ns from kept where len(queued_unix_ns) >= 2) as told using (id)
),
clipped as (
    select id, agent, span_id,
           greatest(queued_unix_ns[i], call_start_ns) as start_ns,
           least(queued_unix_ns[i + 1], call_stop_ns) as end_ns
    from pairs
)
select * from clipped where start_ns < end_ns
