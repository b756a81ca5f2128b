-- Records as they are, with ids as numbers that join and group fast, and a number of their own.
select *, hash(trace_id), hash(span_id),
       case when parent_span_id is not null then hash(parent_span_id) end,
       case when call_id is not null then hash(call_id) end,
       (select count(*) from records) + row_number() over ()
