-- Which calls and waits are inside of which calls, at any depth?
select variant, id, agent, kind, start_ns, stop_ns, unnest(around) as outer_id
from intervals
where around is not null and kind in ('model', 'tool', 'human')
