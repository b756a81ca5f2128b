-- Which few texts do the many calls repeat: agents, names and kinds?
select own_agent as term from kept
union
select trace_id from kept where own_agent is null
union
select parent_agent_id from kept
union
select name from kept
union
select agent_name from kept
union
select kind from kept
union
select 'agent:' || name from kept where kind = 'agent'
union
select unnest(['tool', 'seen', 'low', 'generating', 'blocked_tool', 'blocked_human', 'queued', 'overhead'])
