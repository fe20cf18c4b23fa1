-- tidy.lua: removes the entries of a stream that its own group, the required groups, and each foreign group within its
-- grace have been given and have acknowledged.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group   ARGV[2] grace of foreign groups in ms   ARGV[3] required groups, one per line
-- Reply: {trimmed, entries left, delaying}; delaying has {name, milliseconds, ignored} per foreign group that delays
--        trimming. Nothing is trimmed from a stream that is absent or has lost its own group.
-- Trimming comes first: on a full server it frees memory, and it lets the writes after it pass.
-- Complexity: that of look and O(entries trimmed).
local stream, meta = KEYS[1], KEYS[2]
if redis.call('EXISTS', stream) == 0 then return {0, 0, {}} end
local v, trimmed = look(stream, meta, ARGV[1], tonumber(ARGV[2]), ARGV[3]), 0
if v.has then
  trimmed = trim(stream, v)
  remember(meta, v)
end
return {trimmed, redis.call('XLEN', stream), v.delaying}
