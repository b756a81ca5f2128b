-- Which record of each span counts, and until when is a span without an end known to have lasted?
-- A start record and its complete record, or one file read twice, are one span: the ended record wins.
with seen as (
    select process, max(greatest(coalesce(start_ns, 0), coalesce(end_ns, 0))) as latest_ns
    from records
    group by process
),
chosen as (
    select *
    from records
    qualify row_number() over (
        partition by trace_id, span_id
        order by end_ns is null, start_ns is null, end_ns desc, start_ns, kind, name, agent_id nulls last,
                 parent_agent_id nulls last, conversation_id nulls last, agent_label nulls last,
                 parent_span_id nulls last, queued_unix_ns nulls last, source, process
    ) = 1
)
select
    row_number() over () as id,
    chosen.*,
    greatest(seen.latest_ns, coalesce(processes.last_sign_ns, 0)) as alive_ns,
    coalesce(processes.running, false) as running
from chosen
join seen using (process)
left join processes using (process)
