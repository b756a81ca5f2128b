-- How long was each agent blocked on a tool while one of its sub-agents, at any depth, generated?
with recursive parents as (
    select distinct agent, parent_agent from calls where parent_agent is not null
),
descends as (
    select parent_agent as agent, agent as sub from parents
    union
    select d.agent, p.agent from descends as d join parents as p on p.parent_agent = d.sub
),
layers as (
    select agent, start_ns, stop_ns, 1 as blocked, 0 as elsewhere
    from timeline
    where variant = 'seen' and state = 'blocked_tool' and agent in (select agent from descends)
    union all
    select d.agent, t.start_ns, t.stop_ns, 0, 1
    from descends as d
    join timeline as t on t.agent = d.sub and t.variant = 'seen' and t.state = 'generating'
    where d.agent <> d.sub
),
changes as (
    select agent, at_ns, sum(blocked) as blocked, sum(elsewhere) as elsewhere
    from (
        select agent, start_ns as at_ns, blocked, elsewhere from layers
        union all
        select agent, stop_ns, -blocked, -elsewhere from layers
    )
    group by agent, at_ns
),
levels as (
    select agent, at_ns, lead(at_ns) over (partition by agent order by at_ns) as stop_ns,
           sum(blocked) over so_far > 0 and sum(elsewhere) over so_far > 0 as overlapping
    from changes
    window so_far as (partition by agent order by at_ns rows unbounded preceding)
)
select agent, sum(stop_ns - at_ns) as model_elsewhere_ns
from levels
where overlapping and stop_ns is not null
group by agent
