-- seen.lua: marks subscriptions as seen now, and answers which ones were not seen for a long time.
-- KEYS[1] hash: subscription → when it was seen last, in ms
-- ARGV[1] how long ago, in ms  ARGV[2] most of them in the reply  ARGV[3…] subscriptions seen now
-- Reply: subscriptions that were seen last before that.
-- HDEL comes first because a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Complexity: O(marked subscriptions).
local t = redis.call('TIME')
local at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
if #ARGV > 2 then redis.call('HDEL', KEYS[1], '') end
for i = 3, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', at)) end
local flat, old = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #flat, 2 do
  if #old < tonumber(ARGV[2]) and at - (tonumber(flat[i + 1]) or 0) > tonumber(ARGV[1]) then old[#old + 1] = flat[i] end
end
return old
