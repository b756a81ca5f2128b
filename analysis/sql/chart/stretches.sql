-- Over which stretches of time was any of the shown agents generating, blocked or queued?
-- Idle gaps longer than a fiftieth of all busy time part them, at most the longest few; an agent's first and last
-- instants count as busy, so that the stretches cover every run from end to end.
with shown as (
    select agent, state, start_ns, stop_ns from timeline where variant = 'seen' and agent in (select unnest($agents))
),
busy as (
    select start_ns, stop_ns from shown where state in ('generating', 'blocked_tool', 'queued')
    union all
    select min(start_ns), min(start_ns) from shown group by agent
    union all
    select max(stop_ns), max(stop_ns) from shown group by agent
),
reached as (
    select start_ns, stop_ns,
           max(stop_ns) over (order by start_ns, stop_ns rows between unbounded preceding and 1 preceding) as reached_ns
    from busy
),
gaps as (
    select reached_ns as start_ns, start_ns as stop_ns, start_ns - reached_ns as length_ns
    from reached
    where start_ns > reached_ns
),
whole as (
    select min(start_ns) as start_ns, max(stop_ns) as stop_ns,
           max(stop_ns) - min(start_ns) - (select coalesce(sum(length_ns), 0) from gaps) as busy_ns
    from busy
),
parting as (
    select start_ns, stop_ns
    from gaps
    where length_ns * 50 > (select busy_ns from whole)
    order by length_ns desc, start_ns
    limit $most_gaps
),
edges as (
    select start_ns as at_ns from whole
    union all
    select stop_ns from parting
)
select
    row_number() over (order by at_ns) - 1 as stretch,
    at_ns as start_ns,
    coalesce((select min(start_ns) from parting where start_ns >= at_ns), (select stop_ns from whole)) as stop_ns
from edges
where at_ns is not null
order by at_ns
