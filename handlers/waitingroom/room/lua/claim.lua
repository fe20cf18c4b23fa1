-- claim.lua: READY leases become ADMITTED. A repeated claim changes nothing.
-- ARGV[8] instance that has the connections
-- ARGV[9…] at most 500 users
-- Reply: a place per user, also of those without a lease
-- Complexity: O(users · log N)
local reply = answer('OK')
for i = 9, #ARGV do
  local user = ARGV[i]
  local l = lease(user)
  if l then
    redis.call('ZREM', GONE, user)
    if l.state == 'READY' then
      l.state, l['until'] = 'ADMITTED', now + tokenTime
      redis.call('HINCRBY', ROOM, 'ready', -1)
    end
    l.instanceId = ARGV[8]
    grant(user, l)
  end
  reply[#reply + 1] = standing(user)
end
return reply
