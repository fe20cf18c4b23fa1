-- delete.lua: deletes stream, groups and meta when the stream has been drained for long enough. The
-- script decides and deletes, so that nothing can be added in between.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group   ARGV[2] grace of foreign groups in ms   ARGV[3] required groups, one per line
-- ARGV[4] this deployment's id, or ''   ARGV[5] idle timeout in milliseconds
-- Reply: {1, incarnation} deleted, {0} not drained (or not for long enough), {-1} absent.
-- Errors: FOREIGN with the owner, when the stream belongs to another deployment: nothing was written.
-- Complexity: that of holdings; deleting is O(entries), all of them acknowledged by the groups that count.
local stream, meta = KEYS[1], KEYS[2]
local foreign = ownership(meta, ARGV[4])
if foreign then return foreign end
if redis.call('EXISTS', stream) == 0 then
  redis.call('DEL', meta)
  return {-1}
end
local v = holdings(stream, meta, ARGV[1], tonumber(ARGV[2]), ARGV[3])
if not v.dry then
  redis.call('HDEL', meta, 'since')
  return {0}
end
local at = now()
local known = redis.call('HMGET', meta, 'last', 'since')
local since = tonumber(known[2] or nil)
if known[1] ~= v.mark or not since or since > at then
  allowWrites(meta)
  redis.call('HSET', meta, 'last', v.mark, 'since', string.format('%.0f', at))
  return {0}
end
if at - since < tonumber(ARGV[5]) then return {0} end
local incarnation = redis.call('HGET', meta, 'incarnation') or ''
redis.call('DEL', stream, meta)
return {1, incarnation}
