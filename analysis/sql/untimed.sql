-- Which calls of tools are known by their length alone? They stand on no timeline.
select name, trace_key, lasted_ns from kept where kind = 'tool' and start_ns is null and lasted_ns is not null
