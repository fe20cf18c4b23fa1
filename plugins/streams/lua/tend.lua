-- tend.lua: an instance's visit to a stream it reads: leaves its status, judges idleness for the
-- stream as a whole, trims what is acknowledged.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group    ARGV[2] the instance's field in meta   ARGV[3] its status (JSON)
-- Reply: {0} when the stream is absent (nothing is written then), otherwise
--        {1, has the group, drained, milliseconds drained, length, pending, trimmed}.
-- meta remembers in `last` what was delivered last and in `since` when the stream was first seen
-- drained with that.
-- Complexity: O(groups) and O(entries trimmed).
local stream, meta = KEYS[1], KEYS[2]
if redis.call('EXISTS', stream) == 0 then return {0} end
local at = now()
redis.call('HSET', meta, ARGV[2], string.format('%.0f %s', at, ARGV[3]))

local list = groups(stream)
local pending = 0
for _, g in ipairs(list) do pending = pending + g.pending end
local dry, mark = drained(stream, list)
local idle = 0
if dry then
  local known = redis.call('HMGET', meta, 'last', 'since')
  local since = tonumber(known[2] or nil)
  if known[1] == mark and since and since <= at then
    idle = at - since
  else
    redis.call('HSET', meta, 'last', mark, 'since', string.format('%.0f', at))
  end
else
  redis.call('HDEL', meta, 'since')
end
local trimmed = trim(stream, list)
return {1, has(list, ARGV[1]) and 1 or 0, dry and 1 or 0, idle, redis.call('XLEN', stream), pending, trimmed}
