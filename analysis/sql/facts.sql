-- What did each agent's time go to, whatever a report assumes? Nanoseconds, one row an agent that called anything at all.
with identity as (
    select
        agent,
        min(start_ns) as start_ns,
        count(*) filter (where kind = 'tool' and not repeats) as tool_calls,
        count(*) filter (where kind = 'tool' and not repeats and end_ns is null) as open_calls,
        count(*) filter (where kind = 'model' and not repeats) as model_calls,
        coalesce(bool_or(kind = 'tool' and end_ns is null), false) as any_open,
        bool_or(running) as running
    from calls
    group by agent
    having tool_calls + model_calls > 0
),
-- The earliest span that tells has the word; an agent's own run before anything else it did.
introduced as (
    select agent, kind = 'agent' as is_run, min(start_ns) as start_ns
    from calls
    where agent_name is not null
    group by agent, is_run
),
named as (
    select calls.agent, arg_min(calls.agent_name, (not is_run, trace_id, span_id)) as name
    from introduced
    join calls on calls.agent = introduced.agent and calls.start_ns = introduced.start_ns
              and calls.agent_name is not null and (calls.kind = 'agent') = is_run
    join kept on kept.id = calls.id
    group by calls.agent
),
started as (
    select calls.agent, arg_min(parent_agent, (calls.start_ns, trace_id, span_id)) as parent
    from calls
    join kept on kept.id = calls.id
    where parent_agent is not null
    group by calls.agent
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
        count(*) filter (where state = 'blocked_tool') as windows
    from timeline
    group by variant, agent
),
held as (
    select agent,
           count(tokens) as sized_windows,
           sum(tokens) as context_tokens,
           sum(stop_ns - start_ns) filter (where tokens is not null) as sized_ns,
           sum(tokens::hugeint * ((stop_ns - start_ns) // 1000)) as idle_token_us
    from contexts
    group by agent
)
select
    identity.agent, identity.start_ns, named.name, started.parent, identity.running,
    identity.tool_calls, identity.open_calls, identity.model_calls,
    coalesce(unions.wall_ns, 0)::bigint as wall_ns,
    coalesce(unions.generating_ns, 0)::bigint as generating_ns,
    coalesce(unions.tool_union_ns, 0)::bigint as tool_union_ns,
    coalesce(seen.generating_state_ns, 0)::bigint as generating_state_ns,
    coalesce(seen.blocked_ns, 0)::bigint as blocked_ns,
    coalesce(seen.human_ns, 0)::bigint as human_ns,
    coalesce(seen.queued_ns, 0)::bigint as queued_ns,
    coalesce(seen.overhead_ns, 0)::bigint as overhead_ns,
    coalesce(held.sized_windows, 0) as sized_windows,
    coalesce(held.context_tokens, 0)::bigint as context_tokens,
    coalesce(held.sized_ns, 0)::bigint as sized_ns,
    coalesce(held.idle_token_us, 0)::hugeint as idle_token_us,
    coalesce(elsewhere.model_elsewhere_ns, 0)::bigint as model_elsewhere_ns,
    coalesce(seen.steps, 0) as steps,
    coalesce(seen.windows, 0) as windows,
    -- An agent without open tool calls has no "low" timeline: what was seen is certain.
    case when not identity.any_open then coalesce(seen.blocked_ns, 0) else coalesce(low.blocked_ns, 0) end::bigint
        as low_blocked_ns,
    case when not identity.any_open then coalesce(seen.wall_ns - seen.human_ns, 0)
         else coalesce(low.wall_ns - low.human_ns, 0) end::bigint as low_active_ns
from identity
left join named using (agent)
left join started using (agent)
left join unions using (agent)
left join states as seen on seen.agent = identity.agent and seen.variant = 'seen'
left join states as low on low.agent = identity.agent and low.variant = 'low'
left join elsewhere on elsewhere.agent = identity.agent
left join held on held.agent = identity.agent
