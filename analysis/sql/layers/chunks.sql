-- Which groups are derived together? As many as make a good number of rows.
select home, print, pieces, rows,
       (sum(rows) over (order by home rows between unbounded preceding and current row) // $chunk_rows)::integer as chunk
from groups
where home not in (select home from used)
