-- How many tokens did an agent hold in each of its blocked windows? Those of the model call that began last before it.
-- Null before the first model call that tells.
with told as (
    select agent, start_ns, tokens from calls where kind = 'model' and tokens is not null
),
moments as (
    select agent, start_ns, null::bigint as stop_ns, 0 as is_window, tokens from told
    union all
    select agent, start_ns, stop_ns, 1, null from timeline where variant = 'seen' and state = 'blocked_tool'
),
filled as (
    -- Of model calls that began at once, the longest counts.
    select agent, start_ns, stop_ns, is_window, last_value(tokens ignore nulls) over (
        partition by agent order by start_ns, is_window, tokens rows between unbounded preceding and current row
    ) as tokens
    from moments
)
select agent, start_ns, stop_ns, tokens from filled where is_window = 1
