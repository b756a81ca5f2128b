-- What in the data is odd enough to be said beside the figures?
select
    coalesce(sum(number) filter (where what = 'duplicates'), 0)::bigint as duplicates,
    coalesce(sum(number) filter (where what = 'untimed'), 0)::bigint as untimed,
    coalesce(sum(number) filter (where what = 'backward'), 0)::bigint as backward,
    coalesce(sum(number) filter (where what = 'zero_length'), 0)::bigint as zero_length,
    coalesce(sum(number) filter (where what = 'unended'), 0)::bigint as unended,
    coalesce(sum(number) filter (where what = 'agent_unknown'), 0)::bigint as agent_unknown,
    coalesce(sum(number) filter (where what = 'repeated_calls'), 0)::bigint as repeated_calls,
    coalesce(sum(number) filter (where what = 'parent_missing'), 0)::bigint as parent_missing,
    coalesce(sum(number) filter (where what = 'parent_circular'), 0)::bigint as parent_circular,
    coalesce(sum(number) filter (where what = 'idle_agents'), 0)::bigint as idle_agents,
    coalesce(sum(number) filter (where what = 'containers'), 0)::bigint as containers
from oddities
