-- How many agents are blocked on tools, and how many generate, from which instant on?
with changes as (
    select state, start_ns as at_ns, 1 as step from timeline where variant = 'seen'
    union all
    select state, stop_ns, -1 from timeline where variant = 'seen'
),
instants as (
    select at_ns,
           coalesce(sum(step) filter (where state = 'blocked_tool'), 0) as blocked,
           coalesce(sum(step) filter (where state = 'generating'), 0) as generating
    from changes
    group by at_ns
)
select at_ns, (sum(blocked) over so_far)::bigint as blocked, (sum(generating) over so_far)::bigint as generating
from instants
window so_far as (order by at_ns rows unbounded preceding)
order by at_ns
