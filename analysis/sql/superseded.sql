-- Which records are of a span that another record tells better?
-- A start record and its complete record, or one file read twice, are one span: the ended record wins. Most spans are
-- told once, or by a start and an end, so that only what is left needs to be put in order.
with beaten as (
    select started.row
    from (select row, trace_key, span_key from records where end_ns is null) as started
    semi join (select trace_key, span_key from records where end_ns is not null) as ended using (trace_key, span_key)
),
twice as (
    select trace_key, span_key
    from records
    group by trace_key, span_key, end_ns is null
    having count(*) > 1
),
ranked as (
    select row, row_number() over (
        partition by trace_id, span_id
        order by end_ns is null, start_ns is null, end_ns desc, start_ns, kind, name, agent_id nulls last,
                 parent_agent_id nulls last, conversation_id nulls last, agent_label nulls last,
                 parent_span_id nulls last, queued_unix_ns nulls last, suspended_unix_ns nulls last,
                 input_tokens nulls last, output_tokens nulls last, source, process, row
    ) as place
    from records
    semi join twice using (trace_key, span_key)
)
select row from beaten
union
select row from ranked where place > 1
