-- claim.lua: READY leases become ADMITTED. A repeated claim changes nothing.
-- ARGV[8] instance that has the connections
-- ARGV[9…] at most 250 users; without one the script writes what is there, and the caller waits for the replicas
-- Reply: a place per user, also of those without a lease
-- Complexity: O(users · log N)
local reply, users = answer('OK'), {unpack(ARGV, 9)}
if #users == 0 then
  redis.call('HSET', ROOM, 'sold', room.sold)
  return reply
end
local texts, found, claimed = redis.call('HMGET', LEASE, unpack(users)), {}, 0
local names, granted, ends = {}, {}, {}
for i, user in ipairs(users) do
  local l = found[user] or toLease(texts[i])
  if l and not found[user] then
    found[user], names[#names + 1] = l, user
    if l.state == 'READY' then
      l.state, l['until'] = 'ADMITTED', now + tokenTime
      claimed = claimed + 1
    end
    l.instanceId = ARGV[8]
    pair(granted, user, leaseText(l))
    pair(ends, num(l['until']), user)
  end
  reply[#reply + 1] = l and place(l.state, l.idx, l) or standing(user)
end
if #names > 0 then
  redis.call('ZREM', GONE, unpack(names))
  if claimed > 0 then redis.call('HINCRBY', ROOM, 'ready', -claimed) end
  redis.call('HSET', LEASE, unpack(granted))
  redis.call('ZADD', LEASES, unpack(ends))
end
return reply
