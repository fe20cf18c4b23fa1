-- extend.lua: gives a lease that a shop has verified a later end, for the session of that shop. The end never moves back, so a
--             repeated request changes nothing.
-- ARGV[8] user   ARGV[9] id of the lease   ARGV[10] session   ARGV[11] requested end (server time in ms)
-- ARGV[12] max_turn in ms: most time of a lease from its claim, in the time of the room   ARGV[13] name of the shop
-- Reply: the place, with the end that counts. Code UNVERIFIED: no session has verified the lease. Code USED: another one has.
--        Code ENDED: it is over, the place says why.
-- Complexity: O(log N)
local user, jti, by, requested, most, shop = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12]), ARGV[13]
local l = lease(user)
if not l or l.jti ~= jti then
  local e = ended(jti) or {}
  return answer('ENDED', place(e.state or '', 0, nil, e.reason or 'unknown'))
end
if not verified(l) then return answer('UNVERIFIED', standing(user)) end
if l.by ~= by then return answer('USED', standing(user)) end
pass()
l.shop = shop
if (tonumber(l.started) or 0) == 0 then l.started = math.min(now, l['until'] - tokenTime) end
l['until'] = math.max(l['until'], math.min(requested - stopped, l.started + most))
grant(user, l) -- also without a change: the caller waits until replicas have all writes up to this one
return answer('OK', standing(user))
