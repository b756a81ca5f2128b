-- Which agents are there, and in which group? Each under a number that no other layer uses.
with known as (
    select distinct agent from owned
),
placed as (
    select node, min(home) as home from edges join homes using (trace_key) group by node
)
select $first + row_number() over () as number, agent, seat
from known
join placed on placed.node = hash(agent::varchar)
join members using (home)
