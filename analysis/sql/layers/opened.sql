-- Which processes' last signs of life do calls that never ended depend on? One such call stands for its process.
select seat, min(kept.id) as row, any_value(alive_ns) as alive_ns, any_value(running) as running
from kept
join homes using (trace_key)
join members using (home)
where end_ns is null and kind <> 'other' and start_ns is not null
group by seat, process
