-- What did each agent's time go to? Nanoseconds, one row an agent that called a model or a tool at all.
with identity as (
    select
        agent,
        coalesce(arg_min(agent_name, (start_ns, trace_id, span_id)) filter (where kind = 'agent'),
                 arg_min(agent_name, (start_ns, trace_id, span_id)) filter (where agent_name is not null)) as name,
        arg_min(parent_agent, (start_ns, trace_id, span_id)) filter (where parent_agent is not null) as parent,
        min(start_ns) as start_ns,
        count(*) filter (where kind = 'tool') as tool_calls,
        count(*) filter (where kind = 'tool' and end_ns is null) as open_calls,
        count(*) filter (where kind = 'model') as model_calls,
        bool_or(running and end_ns is null) as running
    from spans
    group by agent
    having tool_calls + model_calls > 0
),
unions as (
    select agent,
           sum(stop_ns - start_ns) as wall_ns,
           sum(stop_ns - start_ns) filter (where any_model) as generating_ns,
           sum(stop_ns - start_ns) filter (where any_tool) as tool_union_ns
    from slices
    where variant = 'seen'
    group by agent
),
states as (
    select
        variant, agent,
        coalesce(sum(stop_ns - start_ns), 0) as wall_ns,
        coalesce(sum(stop_ns - start_ns) filter (where state = 'generating'), 0) as generating_state_ns,
        coalesce(sum(stop_ns - start_ns) filter (where state = 'blocked_tool'), 0) as blocked_ns,
        coalesce(sum(stop_ns - start_ns) filter (where state = 'blocked_human'), 0) as human_ns,
        coalesce(sum(stop_ns - start_ns) filter (where state = 'queued'), 0) as queued_ns,
        coalesce(sum(stop_ns - start_ns) filter (where state = 'overhead'), 0) as overhead_ns,
        count(*) filter (where state = 'generating') as steps,
        count(*) filter (where state = 'blocked_tool') as windows,
        coalesce(sum(greatest(0, stop_ns - start_ns - $round_trip_ns)) filter (where state = 'blocked_tool'), 0)
            as evictable_ns
    from timeline
    group by variant, agent
)
select
    identity.agent, identity.name, identity.parent, identity.running,
    identity.tool_calls, identity.open_calls, identity.model_calls,
    coalesce(unions.wall_ns, 0)::bigint as wall_ns,
    coalesce(unions.generating_ns, 0)::bigint as generating_ns,
    coalesce(unions.tool_union_ns, 0)::bigint as tool_union_ns,
    coalesce(seen.generating_state_ns, 0)::bigint as generating_state_ns,
    coalesce(seen.blocked_ns, 0)::bigint as blocked_ns,
    coalesce(seen.human_ns, 0)::bigint as human_ns,
    coalesce(seen.queued_ns, 0)::bigint as queued_ns,
    coalesce(seen.overhead_ns, 0)::bigint as overhead_ns,
    coalesce(seen.evictable_ns, 0)::bigint as evictable_ns,
    coalesce(elsewhere.model_elsewhere_ns, 0)::bigint as model_elsewhere_ns,
    coalesce(seen.steps, 0) as steps,
    coalesce(seen.windows, 0) as windows,
    -- An agent without open tool calls has no "low" timeline: what was seen is certain.
    case when identity.open_calls = 0 then coalesce(seen.blocked_ns, 0) else coalesce(low.blocked_ns, 0) end::bigint
        as low_blocked_ns,
    case when identity.open_calls = 0 then coalesce(seen.wall_ns - seen.human_ns, 0)
         else coalesce(low.wall_ns - low.human_ns, 0) end::bigint as low_active_ns
from identity
left join unions using (agent)
left join states as seen on seen.agent = identity.agent and seen.variant = 'seen'
left join states as low on low.agent = identity.agent and low.variant = 'low'
left join elsewhere on elsewhere.agent = identity.agent
order by identity.start_ns, identity.agent
