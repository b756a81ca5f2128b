-- What is each agent's state between any two neighbouring instants at which something of it begins or ends?
-- +1 at a beginning, -1 at an end, the other way round for cuts; then running sums. Two counts share a number, the
-- second in steps of 2^26: sums of doubles are exact that far, and faster than those of integers. Of changes at one
-- instant only the last has all of them in its sum, and it alone has a length.
with layers as (
    select variant, agent, start_ns, stop_ns,
           case kind when 'model' then 1 when 'tool' then 67108864 else 0 end::double as calls,
           case kind when 'human' then 1 else 0 end::double as waits,
           case kind when 'model' then 1 when 'tool' then 67108864 else 0 end::double as any_call
    from intervals
    union all
    select variant, agent, start_ns, stop_ns, case kind when 'model' then -1 when 'tool' then -67108864 else 0 end, 0, 0
    from cuts
    union all
    select variant, agent, start_ns, stop_ns, 0, 1, 0 from human_gaps
    union all
    select i.variant, i.agent, q.start_ns, q.end_ns, 0, 67108864, 0
    from queued as q
    join intervals as i on i.id = q.id
),
changes as (
    select variant, agent, start_ns as at_ns, calls, waits, any_call from layers
    union all
    select variant, agent, stop_ns, -calls, -waits, -any_call from layers
),
levels as (
    select variant, agent, at_ns as start_ns, lead(at_ns) over later as stop_ns, sum(calls) over so_far as calls
    from changes
    window later as (partition by variant, agent order by at_ns),
           so_far as (partition by variant, agent order by at_ns rows unbounded preceding)
),
-- Most agents wait for nobody, and have nothing cut out of their calls, which therefore are all calls there are.
others as (
    select agent from cuts
    union
    select agent from layers where waits <> 0
),
more as (
    select variant, agent, at_ns as start_ns, lead(at_ns) over later as stop_ns,
           sum(waits) over so_far as waits, sum(any_call) over so_far as any_call
    from changes
    where agent in (select agent from others)
    window later as (partition by variant, agent order by at_ns),
           so_far as (partition by variant, agent order by at_ns rows unbounded preceding)
)
select levels.variant, levels.agent, levels.start_ns, levels.stop_ns,
       case when calls % 67108864 > 0 then 'generating'
            when calls >= 67108864 then 'blocked_tool'
            when waits % 67108864 > 0 then 'blocked_human'
            when waits >= 67108864 then 'queued'
            else 'overhead' end as state,
       coalesce(any_call, calls) % 67108864 > 0 as any_model,
       coalesce(any_call, calls) >= 67108864 as any_tool
from levels
left join more on more.variant = levels.variant and more.agent = levels.agent
              and more.start_ns = levels.start_ns and more.stop_ns > more.start_ns
where levels.stop_ns > levels.start_ns
