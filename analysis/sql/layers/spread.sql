-- The records of each chunk, in files of their own.
copy (
    select everything.*, chunk
    from everything
    join homes using (trace_key)
    join chunks using (home)
) to $target (format parquet, partition_by (chunk))
