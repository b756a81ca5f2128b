-- The records of the files that are asked for: rows of packs, under the numbers of this report's sources and processes.
create or replace view records as
select rows.* exclude (part, process, file_row_number),
       parts.source, parts.processes[rows.process + 1] as process, parts.first_row + file_row_number as row
from read_parquet($packs, file_row_number = true) as rows
join parts using (part)
