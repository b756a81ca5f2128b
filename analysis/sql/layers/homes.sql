-- Which group does each trace belong to, as far as one round of looking at its agents' other traces shows?
-- A group is called after the smallest number among its traces and agents.
with reached as (
    select node, min(home) as home from edges join homes using (trace_key) group by node
)
select trace_key, min(home) as home from edges join reached using (node) group by trace_key
