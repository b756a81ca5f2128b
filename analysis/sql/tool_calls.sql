-- How long did each call of a tool take, less the time it waited for whoever takes the items it yields?
with clipped as (
    select calls.id, greatest(s.start_ns, calls.start_ns) as start_ns, least(s.stop_ns, calls.stop_ns) as stop_ns
    from suspended as s
    join calls on calls.id = s.id
),
reached as (
    select id, start_ns, stop_ns, max(stop_ns) over (
        partition by id order by start_ns, stop_ns rows between unbounded preceding and 1 preceding
    ) as reached_ns
    from clipped
    where start_ns < stop_ns
),
paused as (
    select id, sum(greatest(0, stop_ns - greatest(start_ns, coalesce(reached_ns, start_ns))))::bigint as paused_ns
    from reached
    group by id
)
select calls.agent, calls.name, calls.stop_ns - calls.start_ns - coalesce(paused_ns, 0) as length_ns,
       calls.end_ns is null as is_open
from calls
left join paused on paused.id = calls.id
where calls.kind = 'tool' and not calls.repeats
