-- What are the tool calls, model calls, agent runs and waits for a person, in normal form?
-- A model call that was only inferred and wraps others is none: it is the framework's step around the call.
with own as (
    select *, id in (select id from repeated) as repeats from owned
)
select * from own where not (repeats and kind = 'model' and derived)
union all
select *, false from delegated
