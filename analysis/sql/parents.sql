-- Which spans are the parents of others?
select id, trace_key, span_key, parent_key, trace_id, kind, own_agent
from kept
semi join (
    select distinct trace_key, parent_key as span_key from kept where parent_key is not null
) as named using (trace_key, span_key)
