-- What did each agent's time go to, given how long a copy out and back takes and how long a wait may be a person's?
-- Nanoseconds, one row an agent that called a model or a tool at all.
with waited as (
    select
        agent,
        sum(greatest(0, stop_ns - start_ns - $round_trip_ns)) as evictable_ns,
        sum(least(stop_ns - start_ns, $window_cap_ns)) as capped_ns
    from contexts
    group by agent
)
select
    facts.* exclude (start_ns),
    coalesce(waited.evictable_ns, 0)::bigint as evictable_ns,
    coalesce(waited.capped_ns, 0)::bigint as capped_ns
from facts
left join waited on waited.agent = facts.agent
order by facts.start_ns, facts.agent
