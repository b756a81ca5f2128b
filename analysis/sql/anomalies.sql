-- What in the data is odd enough to be said beside the figures?
select
    (select count(*) from records where end_ns is not null) - count(*) filter (where end_ns is not null) as duplicates,
    count(*) filter (where kind <> 'other' and start_ns is null) as untimed,
    count(*) filter (where kind <> 'other' and end_ns < start_ns) as backward,
    count(*) filter (where kind <> 'other' and end_ns = start_ns) as zero_length,
    count(*) filter (where kind <> 'other' and start_ns is not null and end_ns is null) as unended,
    count(*) filter (where parent_missing) as parent_missing,
    count(*) filter (where parent_circular) as parent_circular,
    (select count(*) from (select agent from spans group by agent having count(*) filter (where kind in ('tool', 'model')) = 0))
        as idle_agents
from kept
join lineage using (id)
