-- Which parts of a model call are not generation, and which parts of a tool call are not the tool's?
-- Out of a model call: queueing of it and of the agent's model calls inside it, and the agent's tool calls inside it.
-- Out of a tool call: the agent's waits for a person inside it, and what the call itself spent waiting for whoever takes
-- the items it yields. Clipped to the call and united within it.
with clipped as (
    select o.variant, o.id, o.agent, o.kind,
           greatest(p.start_ns, o.start_ns) as start_ns, least(p.stop_ns, o.stop_ns) as stop_ns
    from pieces as p
    join intervals as o on o.variant = p.variant and o.id = p.outer_id and o.agent = p.agent
    where (o.kind = 'model' and p.kind in ('model', 'tool')) or (o.kind = 'tool' and p.kind in ('human', 'suspended'))
),
reached as (
    select *, max(stop_ns) over (
        partition by variant, id order by start_ns, stop_ns rows between unbounded preceding and 1 preceding
    ) as reached_ns
    from clipped
    where start_ns < stop_ns
),
numbered as (
    select *, count(*) filter (where reached_ns is null or start_ns > reached_ns) over (
        partition by variant, id order by start_ns, stop_ns rows unbounded preceding
    ) as island
    from reached
)
select variant, id, agent, kind, min(start_ns) as start_ns, max(stop_ns) as stop_ns
from numbered
group by variant, id, agent, kind, island
