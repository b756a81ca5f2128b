-- What did each file hold, and which of the things a report wants to know did it show?
select
    source,
    count(*) as spans,
    count(*) filter (where kind = 'model') as model_calls,
    count(queued_unix_ns) as queue_reports,
    count(*) filter (where kind = 'human') as human_waits,
    count(*) filter (where kind = 'agent' and coalesce(agent_id, conversation_id) is not null) as turns
from records
group by source
