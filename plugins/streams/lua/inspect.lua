-- inspect.lua: what a stream is and what instances have said about it. Reads only.
-- KEYS[1] stream   KEYS[2] meta
-- Reply: {exists, incarnation, drained, length, pending, now in milliseconds, meta as a flat list}.
-- Complexity: O(groups + fields of meta).
local stream, meta = KEYS[1], KEYS[2]
local flat = redis.call('HGETALL', meta)
local token = redis.call('HGET', meta, 'incarnation') or ''
if redis.call('EXISTS', stream) == 0 then return {0, token, 1, 0, 0, now(), flat} end
local list = groups(stream)
local pending = 0
for _, g in ipairs(list) do pending = pending + g.pending end
local dry = drained(stream, list)
return {1, token, dry and 1 or 0, redis.call('XLEN', stream), pending, now(), flat}
