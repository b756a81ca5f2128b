-- Over which interval does each span count, as seen and (for agents with open tool calls) at the least?
-- "low" ends an open tool call at its start: what is certain when nobody knows how long the call lasted.
select 'seen' as variant, id, agent, kind, start_ns, stop_ns, around, names_agent
from calls
union all
select 'low', id, agent, kind, start_ns,
       case when kind = 'tool' and end_ns is null then start_ns else stop_ns end,
       around, names_agent
from calls
where agent in (select agent from calls where kind = 'tool' and end_ns is null)
