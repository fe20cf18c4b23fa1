-- visit.lua: an instance's visit to a stream that it reads. It trims acknowledged entries, writes the
-- instance's status, and finds out since when the stream is idle.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group   ARGV[2] grace of foreign groups in ms   ARGV[3] required groups, one per line
-- ARGV[4] this deployment's id, or ''   ARGV[5] the instance's field in meta   ARGV[6] its status (JSON)
-- Reply: {1, has the group, drained, milliseconds drained, length, pending, trimmed, delaying}.
-- For an absent stream: {0}, and nothing is written. delaying has {name, milliseconds, ignored} per
-- foreign group that delays trimming and deletion.
-- Errors: FOREIGN with the owner, when the stream belongs to another deployment: nothing was written.
-- meta remembers in `last` what was delivered last and in `since` when the stream was first seen
-- drained with that.
-- Trimming comes first: on a full server it frees memory, and it lets the writes after it pass.
-- Complexity: that of holdings and O(entries trimmed).
local stream, meta = KEYS[1], KEYS[2]
if redis.call('EXISTS', stream) == 0 then return {0} end
local foreign, free = ownership(meta, ARGV[4])
if foreign then return foreign end
local v, at = holdings(stream, meta, ARGV[1], tonumber(ARGV[2]), ARGV[3]), now()
local trimmed = v.has and trim(stream, v) or 0

allowWrites(meta)
redis.call('HSET', meta, ARGV[5], string.format('%.0f %s', at, ARGV[6]))
if free then redis.call('HSET', meta, 'owner', ARGV[4]) end
storeForeign(meta, v)

local idle = 0
if v.dry then
  local known = redis.call('HMGET', meta, 'last', 'since')
  local since = tonumber(known[2] or nil)
  if known[1] == v.mark and since and since <= at then
    idle = at - since
  else
    redis.call('HSET', meta, 'last', v.mark, 'since', string.format('%.0f', at))
  end
else
  redis.call('HDEL', meta, 'since')
end
return {1, v.has and 1 or 0, v.dry and 1 or 0, idle, redis.call('XLEN', stream), v.pending, trimmed, v.delaying}
