-- inspect.lua: what a stream is and what instances have said about it. Reads only.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group   ARGV[2] grace of foreign groups in ms   ARGV[3] required groups, one per line
-- Reply: {exists, incarnation, drained, length, pending, now in milliseconds, meta as a flat list, delaying}.
--        drained is about the own group alone. delaying has {name, milliseconds, ignored} per foreign group that
--        delays trimming and deletion.
-- Complexity: that of holdings and O(fields of meta).
local stream, meta = KEYS[1], KEYS[2]
local flat = redis.call('HGETALL', meta)
local token = redis.call('HGET', meta, 'incarnation') or ''
if redis.call('EXISTS', stream) == 0 then return {0, token, 1, 0, 0, now(), flat, {}} end
local v = holdings(stream, meta, ARGV[1], tonumber(ARGV[2]), ARGV[3])
return {1, token, v.ownDry and 1 or 0, redis.call('XLEN', stream), v.pending, now(), flat, v.delaying}
