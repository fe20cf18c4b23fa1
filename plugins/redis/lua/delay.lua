-- delay.lua: keeps an entry that is added to its stream when a delay has passed, by this server's clock.
-- KEYS[1] sorted set: entry → when it is due, in ms since 1970
-- ARGV[1] delay in ms  ARGV[2] entry: the fields and values of XADD, each as <length>:<bytes>
-- Reply: 1, or 0 when the set has the entry already: the client has sent the call again.
-- Complexity: O(log entries that wait).
local t = redis.call('TIME')
local at = math.ceil(tonumber(t[1]) * 1000 + tonumber(t[2]) / 1000) + tonumber(ARGV[1])
return redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', at), ARGV[2])
