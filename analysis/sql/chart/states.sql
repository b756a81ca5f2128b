-- Which states does each agent go through?
select agent, state, start_ns, stop_ns
from timeline
where variant = 'seen'
order by agent, start_ns
