-- What may have to be cut out of which calls: waits and calls inside of them, each as long as it is.
select i.variant, i.id, i.agent, i.kind, q.start_ns, q.end_ns as stop_ns, i.id as outer_id
from queued as q
join intervals as i on i.id = q.id
union all
select w.variant, w.id, w.agent, w.kind, q.start_ns, q.end_ns as stop_ns, w.outer_id
from queued as q
join within_call as w on w.id = q.id
union all
select o.variant, o.id, o.agent, 'suspended', s.start_ns, s.stop_ns, o.id
from suspended as s
join intervals as o on o.id = s.id
union all
select variant, id, agent, kind, start_ns, stop_ns, outer_id from within_call where kind in ('tool', 'human')
