-- create.lua: makes stream, group (at 0) and meta where they are missing.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group    ARGV[2] a fresh incarnation token
-- Reply: {1, token} when the group was made, {0, incarnation} when it was there already
--        (BUSYGROUP is success). A group that had to be made means that the stream is new, lost or
--        replaced, whatever meta says: it gets the fresh token, so that the loss is noticed.
-- Complexity: O(1).
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if type(made) == 'table' and made.err then
  if not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
  redis.call('HSETNX', KEYS[2], 'incarnation', ARGV[2])
  return {0, redis.call('HGET', KEYS[2], 'incarnation')}
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'incarnation', ARGV[2])
return {1, ARGV[2]}
