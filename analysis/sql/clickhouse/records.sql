-- What do the spans of the Collector's table say, in the normal form?
-- Attributes are texts there; what is missing is an empty one. A span without an end has one at 0, so that its length
-- is negative and wraps around; sums of 64 bits wrap it back.
with
    value -> nullIf(replaceRegexpAll(value, '[\\p{Cc}\\x{2028}\\x{2029}]', '\xEF\xBF\xBD'), '') as text,
    (attributes, keys) -> text(arrayFirst(value -> value <> '', arrayMap(key -> attributes[key], keys))) as first_of,
    (attributes, keys) -> arrayExists(key -> mapContains(attributes, key), keys) as any_of,
    number -> if(number between 0 and $max_tokens, number, null) as sensible,
    (attributes, keys) -> arrayFirst(
        number -> number is not null, arrayMap(key -> sensible(toInt64OrNull(attributes[key])), keys)
    ) as count_of,
    (attributes, key) -> JSONExtract(attributes[key], 'Array(Nullable(Int64))') as listed,
    instants -> if(length(instants) % 2 = 0 and not has(instants, null), instants, []) as pairs,
collected as (
    select
        TraceId as trace_id,
        SpanAttributes[$logfire_type] = $logfire_pending as pending,
        -- A pending span of Logfire is the start of the span it stands for, which is its parent.
        if(pending, ParentSpanId, SpanId) as span_id,
        if(pending, SpanAttributes[$logfire_parent], ParentSpanId) as parent_id,
        SpanName as span_name,
        toUnixTimestamp64Nano(Timestamp) as began_ns,
        if(pending, 0, began_ns + toInt64(Duration)) as ended_ns,
        StatusCode in ('Error', 'STATUS_CODE_ERROR') as failed,
        cityHash64(ResourceAttributes[$host], ResourceAttributes[$pid], ResourceAttributes[$process_start]) as process,
        SpanAttributes::Map(String, String) as own
    from $table
    where trace_id <> '' and span_id <> ''
),
worded as (
    select *,
        arrayMap(key -> toInt64OrZero(own[key]), $claude_inputs) as claude_inputs,
        multiIf(
            startsWith(span_name, $claude), mapUpdate(own, map(
                $operation, transform(span_name, $claude_names, $claude_operations, span_name),
                $tool_name, own[$claude_tool],
                $call_id, own[$claude_call],
                $first_chunk, ifNull(toString(toFloat64OrNull(own[$claude_ttft]) / 1000), ''),
                $input_tokens, if(arraySum(claude_inputs) > 0, toString(arraySum(claude_inputs)), ''),
                $output_tokens, own[$claude_output],
                $agent_id, if(own[$session] <> '' and own[$claude_sub_agent] <> '',
                              own[$session] || '/' || own[$claude_sub_agent], own[$session])
            )),
            not mapContains(own, $operation) and match(span_name, $asks), mapUpdate(own, map($operation, $human_wait)),
            own
        ) as attributes
    from collected
),
meant as (
    select *,
        first_of(attributes, $foreign_keys) as foreign,
        multiIf(
            mapContains(attributes, $operation), transform(attributes[$operation], $operations, $operation_kinds, 'other'),
            foreign is not null, transform(lower(foreign), $foreign_names, $foreign_kinds, 'other'),
            attributes[$request_type] in $request_types, 'model',
            null
        ) as declared,
        first_of(attributes, $agent_names) as named_agent,
        multiIf(
            declared is not null, declared,
            first_of(attributes, $inferred_tools) is not null, 'tool',
            any_of(attributes, $providers) and any_of(attributes, $models) and any_of(attributes, $outputs)
                and named_agent is null, 'model',
            'other'
        )::String as kind,
        if(kind = 'agent', coalesce(named_agent, replaceRegexpOne(span_name, $agent_prefix, '')), named_agent) as agent_name
    from worded
)
select
    0::Int32 as source, process, trace_id, span_id, nullIf(parent_id, '') as parent_span_id, kind,
    coalesce(nullIf(multiIf(
        kind = 'tool', coalesce(first_of(attributes, $tool_names), replaceRegexpOne(span_name, $tool_prefix, '')),
        kind = 'agent', agent_name,
        span_name
    ), ''), '(no name)') as name,
    if(kind = 'tool', first_of(attributes, $call_ids), null) as call_id,
    text(attributes[$agent_id]) as agent_id,
    coalesce(text(attributes[$agent_label]), agent_name) as agent_label,
    agent_name,
    text(attributes[$parent_agent_id]) as parent_agent_id,
    first_of(attributes, $conversations) as conversation_id,
    nullIf(began_ns, 0) as start_ns,
    nullIf(ended_ns, 0) as end_ns,
    toFloat64OrNull(attributes[$first_chunk]) as first_chunk_s,
    if(first_chunk_s >= 0 and first_chunk_s < 1e9, start_ns + toInt64(round(first_chunk_s * 1e9)), null) as first_token_ns,
    if(kind = 'model', pairs(listed(attributes, $queued)), []) as queued_unix_ns,
    coalesce(text(attributes[$error]), if(failed, 'error', null)) as error,
    if(kind = 'model' and declared is null, 'derived', 'exact') as confidence,
    if(kind = 'model', count_of(attributes, $inputs), null) as input_tokens,
    if(kind = 'model', count_of(attributes, $output_counts), null) as output_tokens,
    if(kind = 'tool', pairs(listed(attributes, $suspended)), []) as suspended_unix_ns,
    null::Nullable(Int64) as lasted_ns,
    cityHash64(trace_id) as trace_key,
    cityHash64(span_id) as span_key,
    if(parent_span_id is null, null, cityHash64(parent_span_id)) as parent_key,
    if(call_id is null, null, cityHash64(call_id)) as call_key,
    row_number() over ()::Int64 as row
from meant
