-- levels.lua: returns what is ordered about the log level of an instance.
-- KEYS[1] hash: see level.lua
-- ARGV[1] the instance
-- Reply: the time of the server in µs, the order for all instances, the order for this one; "" for none.
-- Complexity: O(1).
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
return {string.format('%.0f', now), redis.call('HGET', KEYS[1], '') or '', redis.call('HGET', KEYS[1], ARGV[1]) or ''}
