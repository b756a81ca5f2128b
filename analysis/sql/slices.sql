-- What is each agent's state between any two neighbouring instants at which something of it begins or ends?
-- +1 at a beginning, -1 at an end, the other way round for cuts; then running sums.
with layers as (
    select variant, agent, start_ns, stop_ns, kind, 1 as sign,
           (kind = 'model')::int as any_model, (kind = 'tool')::int as any_tool
    from intervals
    union all
    select variant, agent, start_ns, stop_ns, kind, -1, 0, 0 from cuts
    union all
    select variant, agent, start_ns, stop_ns, 'human', 1, 0, 0 from human_gaps
    union all
    select i.variant, i.agent, q.start_ns, q.end_ns, 'queued', 1, 0, 0
    from queued as q
    join intervals as i on i.id = q.id
),
edges as (
    select variant, agent, start_ns as at_ns, kind, sign, any_model, any_tool from layers
    union all
    select variant, agent, stop_ns, kind, -sign, -any_model, -any_tool from layers
),
changes as (
    select variant, agent, at_ns,
           sum(sign) filter (where kind = 'model') as model,
           sum(sign) filter (where kind = 'tool') as tool,
           sum(sign) filter (where kind = 'human') as human,
           sum(sign) filter (where kind = 'queued') as queued,
           sum(any_model) as any_model,
           sum(any_tool) as any_tool
    from edges
    group by variant, agent, at_ns
),
levels as (
    select variant, agent, at_ns as start_ns,
           lead(at_ns) over later as stop_ns,
           coalesce(sum(model) over so_far, 0) > 0 as generating,
           coalesce(sum(tool) over so_far, 0) > 0 as blocked_tool,
           coalesce(sum(human) over so_far, 0) > 0 as blocked_human,
           coalesce(sum(queued) over so_far, 0) > 0 as queued,
           sum(any_model) over so_far > 0 as any_model,
           sum(any_tool) over so_far > 0 as any_tool
    from changes
    window later as (partition by variant, agent order by at_ns),
           so_far as (partition by variant, agent order by at_ns rows unbounded preceding)
)
select variant, agent, start_ns, stop_ns,
       case when generating then 'generating'
            when blocked_tool then 'blocked_tool'
            when blocked_human then 'blocked_human'
            when queued then 'queued'
            else 'overhead' end as state,
       any_model, any_tool
from levels
where stop_ns is not null
