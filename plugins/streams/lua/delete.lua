-- delete.lua: deletes stream, groups and meta, if and only if the stream has been drained for long
-- enough; decided and done here, so that nothing can be added in between.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] idle timeout in milliseconds
-- Reply: 1 deleted, 0 not drained (or not for long enough), -1 absent.
-- Complexity: O(groups); deleting is O(entries), all of them acknowledged.
local stream, meta = KEYS[1], KEYS[2]
if redis.call('EXISTS', stream) == 0 then
  redis.call('DEL', meta)
  return -1
end
local dry, mark = drained(stream, groups(stream))
if not dry then
  redis.call('HDEL', meta, 'since')
  return 0
end
local at = now()
local known = redis.call('HMGET', meta, 'last', 'since')
local since = tonumber(known[2] or nil)
if known[1] ~= mark or not since or since > at then
  redis.call('HSET', meta, 'last', mark, 'since', string.format('%.0f', at))
  return 0
end
if at - since < tonumber(ARGV[1]) then return 0 end
redis.call('DEL', stream, meta)
return 1
