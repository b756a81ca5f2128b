-- When was a tool call that yields items waiting for whoever takes them?
select id, suspended_unix_ns[i] as start_ns, suspended_unix_ns[i + 1] as stop_ns
from (
    select id, suspended_unix_ns, unnest(range(1, len(suspended_unix_ns), 2)) as i
    from kept
    where kind = 'tool' and end_ns is not null and len(suspended_unix_ns) >= 2
)
