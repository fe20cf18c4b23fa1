-- orders.lua: returns the orders about routes, after it has put back what the server has lost of them.
-- KEYS[1] hash: see order.lua
-- ARGV pairs of a route and the order that the caller knows
-- Reply: HGETALL.
-- HDEL comes first: a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Complexity: O(N) for N routes.
for i = 1, #ARGV, 2 do
  local there = string.match(redis.call('HGET', KEYS[1], ARGV[i]) or '', '^(%d+) ')
  if (tonumber(there) or 0) < tonumber(string.match(ARGV[i + 1], '^(%d+) ')) then
    redis.call('HDEL', KEYS[1], '')
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return redis.call('HGETALL', KEYS[1])
