-- measure.lua: measures a stream.
-- KEYS[1] stream
-- Reply: {entries, last generated id, ms by which that id is ahead of the server's clock, at most 1e12; 0: it is not}.
--        {0, '', 0} for an absent stream.
-- Complexity: O(1), and a copy of the first and the last entry inside the server.
local stream = KEYS[1]
if redis.call('EXISTS', stream) == 0 then return {0, '', 0} end
local info, flat = {}, redis.call('XINFO', 'STREAM', stream)
for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
local t, last = redis.call('TIME'), info['last-generated-id'] or ''
local at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local ahead = tonumber((string.match(last, '^%d+') or '0') .. '.0') - at -- .0: miniredis reads no larger integer
return {info['length'], last, math.min(1e12, math.max(0, ahead))}
