-- Which groups have been derived before, and in which layer? Any one of those that agree will do.
with same as (
    select home, max(seat) as seat from groups join shelved using (home, print, pieces) group by home
)
select same.home, same.seat, shelved.layer from same join shelved using (seat)
