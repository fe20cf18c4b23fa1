-- verify.lua: checks a lease for a shop. The lease is then for one session of the shop. From then on it is ended by the
--             shop, by its time or by an operator, but neither by the user nor by a lost connection.
-- ARGV[8] user   ARGV[9] id of the lease   ARGV[10] session   ARGV[11] name of the shop, which is only recorded
-- Reply: the place. Code USED: another session has the lease. Code ENDED: it is over, the place says why.
-- Complexity: O(log N)
local user, jti, by, shop = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local l = lease(user)
if not l or l.jti ~= jti then
  local e = ended(jti) or {}
  return answer('ENDED', place(e.state or '', 0, nil, e.reason or 'unknown'))
end
if verified(l) and l.by ~= by then return answer('USED', standing(user)) end
pass()
if l.state == 'READY' then -- a failover lost the claim: the shop has the token
  l.state, l['until'] = 'ADMITTED', now + tokenTime
  redis.call('HINCRBY', ROOM, 'ready', -1)
end
l.by, l.shop = by, shop
redis.call('ZREM', GONE, user)
grant(user, l)
return answer('OK', standing(user))
