-- finish.lua: a shop ends a lease. When the lease has ended otherwise, the sale needs a free slot.
-- A sale of the last seat sets the field last_seat of the room.
-- ARGV[8] user   ARGV[9] id of the lease: its index, a hyphen, and a random text   ARGV[10] SOLD or ABANDONED
-- ARGV[11] session of the shop, or empty: after verify it is the one that has the lease, also when the lease has ended
-- ARGV[12] purchases that a user may make, 0 for any number   ARGV[13] name of the shop
-- A late sale that uses the last purchase of a user ends the place and the unverified lease that the user has since.
-- Reply: the place; how is late for a sale after the end, late_lease if it has ended such a lease, and again for a result that is known. Code CONFLICT: the place has
--        the state of the lease. Code USED: another session has the lease, or has ended it.
-- Complexity: O(log N)
local user, jti, result, by, limit, shop = ARGV[8], ARGV[9], ARGV[10], ARGV[11], tonumber(ARGV[12]), ARGV[13]
local reason = string.lower(result)
local index = tonumber(string.match(jti, '^(%d+)%-') or 0)
local l = lease(user)
pass()
local function sell()
  if result ~= 'SOLD' then return end
  redis.call('HINCRBY', BUYERS, user, 1)
  if redis.call('HINCRBY', ROOM, 'sold', 1) == tonumber(room.capacity) then redis.call('HSET', ROOM, 'last_seat', '1') end
end
if l and l.jti == jti then
  if verified(l) and l.by ~= by then return answer('USED', standing(user)) end
  l.by, l.shop = by, shop
  finish(user, l, result, reason)
  sell()
  return answer('OK', place(result, index, nil, reason))
end

-- A lease that a failover lost is not known. It may end in both ways.
local e = ended(jti) or index > tonumber(room.forgotten) and {state = 'EXPIRED', lost = true} or {state = ''}
if verified(e) and e.by ~= by then return answer('USED', place(e.state, index, nil, e.reason)) end
if e.state == result then
  redis.call('HSET', ROOM, 'sold', room.sold) -- the caller waits until replicas have all writes up to this one
  return answer('OK', place(result, index, nil, reason, 'again'))
end
local sells = result == 'SOLD' and (e.state == 'EXPIRED' or e.state == 'ABANDONED') and free() > 0
  and not full(user, limit, l and verified(l) and 1 or 0)
if not sells and not (result == 'ABANDONED' and e.lost) then
  return answer('CONFLICT', place(e.state, index, nil, e.reason or 'unknown'))
end
if (waits(user) or math.huge) <= index then unqueue(user) end
over(user, {jti = jti, idx = index, by = by, shop = shop}, result, reason, index)
sell()
local how = 'late'
if result == 'SOLD' and full(user, limit, 0) then
  if redis.call('ZSCORE', LEASES, user) then how = 'late_lease' end
  leave(user, reason)
end
return answer('OK', place(result, index, nil, reason, how))
