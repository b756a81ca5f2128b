-- How many tokens did the shown agents hold in each bin of time, while they worked and while they were blocked?
-- An agent holds what its model call that began last tells, until its own last instant. Means over the bin.
with told as (
    select agent, start_ns, max(input_tokens + coalesce(output_tokens, 0)) as tokens
    from spans
    where kind = 'model' and input_tokens is not null and agent in (select unnest($agents))
    group by agent, start_ns
),
runs as (
    select t.start_ns, t.stop_ns, t.state, told.tokens
    from timeline as t
    asof join told on t.agent = told.agent and t.start_ns >= told.start_ns
    where t.variant = 'seen'
),
clipped as (
    select s.stretch, s.start_ns as origin_ns, r.state, r.tokens,
           greatest(r.start_ns, s.start_ns) as start_ns, least(r.stop_ns, s.stop_ns) as stop_ns
    from runs as r
    join stretches as s on r.start_ns < s.stop_ns and r.stop_ns > s.start_ns
),
pieces as (
    select *, unnest(range((start_ns - origin_ns) // $bin_ns, (stop_ns - 1 - origin_ns) // $bin_ns + 1)) as bin
    from clipped
),
sizes as (
    select stretch, bin, state,
           tokens::double / $bin_ns
           * (least(stop_ns, origin_ns + (bin + 1) * $bin_ns) - greatest(start_ns, origin_ns + bin * $bin_ns)) as tokens
    from pieces
)
select stretch, bin,
       coalesce(sum(tokens) filter (where state <> 'blocked_tool'), 0) as working_tokens,
       coalesce(sum(tokens) filter (where state = 'blocked_tool'), 0) as idle_tokens
from sizes
group by stretch, bin
order by stretch, bin
