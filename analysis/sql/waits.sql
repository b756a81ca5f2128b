-- How idle was each agent over its last cycles?
select agent, last, median from idleness order by agent
