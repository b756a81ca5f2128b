-- Which marks are drawn, and on which tools were agents blocked meanwhile (three names at most)?
with called as (
    select m.agent, m.start_ns, s.name, sum(least(s.stop_ns, m.stop_ns) - greatest(s.start_ns, m.start_ns)) as inside_ns
    from drawn_marks as m
    join spans as s on s.agent = m.agent and s.start_ns < m.stop_ns and s.stop_ns > m.start_ns
    where m.state = 'blocked_tool' and s.kind = 'tool'
    group by m.agent, m.start_ns, s.name
),
named as (
    select agent, start_ns, count(*) as tool_count, list(name order by inside_ns desc, name)[1:3] as tools
    from called
    group by agent, start_ns
)
select m.agent, m.stretch, m.state, m.start_ns, m.stop_ns, m.changes,
       coalesce(n.tools, []) as tools, coalesce(n.tool_count, 0) as tool_count
from drawn_marks as m
left join named as n using (agent, start_ns)
order by m.agent, m.start_ns
