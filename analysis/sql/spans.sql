-- What does the source say of each call, beside what is asked of all of them?
select
    calls.id, source, agent, parent_agent, calls.kind, calls.name, calls.agent_name, call_id, trace_id, span_id,
    parent_span_id, calls.start_ns, calls.end_ns, alive_ns, first_token_ns,
    case when calls.id > 0 then queued_unix_ns end as queued_unix_ns,
    case when calls.id > 0 then suspended_unix_ns end as suspended_unix_ns,
    error, confidence, input_tokens, output_tokens, coalesce(around, []::bigint[]) as around, calls.running,
    names_agent, stop_ns, repeats
from calls
join kept on kept.id = abs(calls.id)
