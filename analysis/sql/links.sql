-- Which span in the data is each span's parent, and which agent does a span name by itself?
select
    child.*,
    parent.id as parent_id,
    coalesce(
        child.agent_id,
        child.conversation_id || '/' || child.agent_label,
        case when child.kind = 'agent' then child.trace_id || '/' || child.span_id end
    ) as own_agent
from kept as child
left join kept as parent on parent.trace_id = child.trace_id and parent.span_id = child.parent_span_id
