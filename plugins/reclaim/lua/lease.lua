-- lease.lua: makes an instance the one reclaimer of a stream for a while, or prolongs it.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] the instance   ARGV[2] how long, in ms
-- Reply: 1 done, 0 another instance has it, -1 the stream is absent (nothing is written then).
-- The end is a time in meta and not a key's expiry: the companion is deleted together with its stream.
-- Complexity: O(1).
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local t = redis.call('TIME')
local at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local held = redis.call('HMGET', KEYS[2], 'reclaim:by', 'reclaim:until')
local ends = tonumber(held[2] or nil)
if held[1] and held[1] ~= ARGV[1] and ends and ends > at and ends <= at + 10 * tonumber(ARGV[2]) then
  return 0
end
redis.call('HDEL', KEYS[2], '') -- a full server (OOM) refuses HSET as the first write of a script, and only then
redis.call('HSET', KEYS[2], 'reclaim:by', ARGV[1], 'reclaim:until', string.format('%.0f', at + tonumber(ARGV[2])))
return 1
