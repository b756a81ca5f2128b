-- Which record of each span counts, until when is a span without an end known to have lasted, and which agent does it
-- name by itself? An agent called "unknown" is nobody in particular, and not the same nobody in every trace.
with counted as (
    select * replace (nullif(agent_id, 'unknown') as agent_id), coalesce(agent_id = 'unknown', false) as agent_unknown,
           row as id
    from records
    anti join superseded using (row)
)
select
    counted.*, alive_ns, running,
    coalesce(
        agent_id,
        conversation_id || '/' || agent_label,
        case when kind = 'agent' then trace_id || '/' || span_id end
    ) as own_agent
from counted
join alive using (process)
