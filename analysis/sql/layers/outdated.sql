-- In which groups was a call open whose process is now known to have lived longer, or no longer lives?
select distinct used.home
from opened_before as opened
join used using (seat)
join records using (row)
join alive on alive.process = records.process
where opened.alive_ns <> alive.alive_ns or opened.running <> alive.running
