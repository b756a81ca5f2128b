-- Rows and what they share become a pack: one Parquet file, with ids as numbers that join and group fast.
copy (
    select
        rows.* exclude (shared), common.* exclude (shared),
        hash(trace_id) as trace_key, hash(span_id) as span_key,
        case when parent_span_id is not null then hash(parent_span_id) end as parent_key,
        case when call_id is not null then hash(call_id) end as call_key
    from read_csv($rows, columns = $row_types, header = false, auto_detect = false, delim = '\t', quote = '',
                  escape = '', nullstr = '', new_line = '\n', max_line_size = 16000000) as rows
    join read_csv($shared, columns = $shared_types, header = false, auto_detect = false, delim = '\t', quote = '',
                  escape = '', nullstr = '', new_line = '\n', max_line_size = 16000000) as common using (shared)
) to $target (format parquet)
