-- Which rows does each group consist of? Parts never change, so the same parts of the same traces are the same rows.
-- Hashed twice: a hash of two values is a product xor a value, so that two traces in the same two parts would cancel out.
select home, bit_xor(hash(hash(part, trace_key))) as print, count(*) as pieces, sum(rows)::bigint as rows
from pairs
join homes using (trace_key)
where node = trace_key and rows > 0
group by home
