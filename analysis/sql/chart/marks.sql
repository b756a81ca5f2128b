-- What is drawn where every change of state is: the shown agents' states, cut at the stretches' ends.
select t.agent, s.stretch, t.state,
       greatest(t.start_ns, s.start_ns) as start_ns, least(t.stop_ns, s.stop_ns) as stop_ns, 1 as changes
from timeline as t
join stretches as s on t.start_ns < s.stop_ns and t.stop_ns > s.start_ns
where t.variant = 'seen' and t.agent in (select unnest($agents))
