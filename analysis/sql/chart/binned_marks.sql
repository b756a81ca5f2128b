-- What is drawn where the changes of state are too many: in each bin of time the state that held longest.
-- Neighbouring bins of one state are one mark; "changes" counts the states it stands for.
with pieces as (
    select m.agent, m.stretch, m.state, m.start_ns, m.stop_ns, s.start_ns as origin_ns, s.stop_ns as last_ns,
           unnest(range((m.start_ns - s.start_ns) // $bin_ns, (m.stop_ns - 1 - s.start_ns) // $bin_ns + 1)) as bin
    from marks as m
    join stretches as s using (stretch)
),
held as (
    select agent, stretch, bin, state, any_value(origin_ns) as origin_ns, any_value(last_ns) as last_ns,
           min(start_ns) as start_ns, max(stop_ns) as stop_ns,
           sum(least(stop_ns, origin_ns + (bin + 1) * $bin_ns) - greatest(start_ns, origin_ns + bin * $bin_ns))
               as held_ns,
           count(*) filter (where start_ns >= origin_ns + bin * $bin_ns) as begun
    from pieces
    group by agent, stretch, bin, state
),
chosen as (
    select agent, stretch, bin, arg_max(state, (held_ns, state)) as state, sum(begun) as begun,
           greatest(min(start_ns), any_value(origin_ns) + bin * $bin_ns) as start_ns,
           least(max(stop_ns), any_value(origin_ns) + (bin + 1) * $bin_ns) as stop_ns
    from held
    group by agent, stretch, bin
),
marked as (
    select *, state is distinct from lag(state) over (partition by agent, stretch order by bin) as begins
    from chosen
),
numbered as (
    select *, sum(begins::int) over (partition by agent, stretch order by bin rows unbounded preceding) as run
    from marked
)
select agent, stretch, any_value(state) as state, min(start_ns) as start_ns, max(stop_ns) as stop_ns,
       greatest(1, sum(begun))::bigint as changes
from numbered
group by agent, stretch, run
