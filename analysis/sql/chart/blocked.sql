-- When was each agent blocked, and on which tools (the longest first)?
with called as (
    select w.agent, w.start_ns, s.name, sum(least(s.stop_ns, w.stop_ns) - greatest(s.start_ns, w.start_ns)) as inside_ns
    from timeline as w
    join spans as s on s.agent = w.agent and s.start_ns < w.stop_ns and s.stop_ns > w.start_ns
    where w.variant = 'seen' and w.state = 'blocked_tool' and s.kind = 'tool'
    group by w.agent, w.start_ns, s.name
),
named as (
    select agent, start_ns, list(name order by inside_ns desc, name) as tools from called group by agent, start_ns
)
select w.agent, w.start_ns, w.stop_ns - w.start_ns as length_ns, coalesce(named.tools, []) as tools
from timeline as w
left join named using (agent, start_ns)
where w.variant = 'seen' and w.state = 'blocked_tool'
order by w.agent, w.start_ns
