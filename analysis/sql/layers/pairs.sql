-- Which traces and agents do the rows of each part speak of together, and how many rows are they?
-- An agent is the hash of its name, a trace its own. Whatever name an owner may come to have (see "kept" and "lineage")
-- is among them.
with named as (
    select
        part, trace_key, parent_agent_id as above,
        coalesce(
            nullif(agent_id, 'unknown'),
            conversation_id || '/' || agent_label,
            case when kind = 'agent' then trace_id || '/' || span_id end
        ) as own
    from read_parquet($packs)
    where part in (select part from parts)
),
told as (
    select part, trace_key, hash(own) as own_key, own is not null as has_own, hash(above) as above_key,
           above is not null as has_above, count(*) as rows
    from named
    group by all
)
select part, trace_key, trace_key as node, sum(rows)::bigint as rows from told group by part, trace_key
union all
select distinct part, trace_key, own_key, 0 from told where has_own
union all
select distinct part, trace_key, above_key, 0 from told where has_above
