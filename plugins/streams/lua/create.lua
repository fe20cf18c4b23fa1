-- create.lua: makes stream, group (at 0) and meta where they are missing.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group    ARGV[2] a fresh incarnation token
-- Reply: {1, token} when the group was made, {0, incarnation} when it was there already.
--        A group that had to be made means that the stream is new, lost or
--        replaced, whatever meta says: it gets the fresh token, so that the loss is noticed.
-- Errors: OOM on a full server, when the group is missing. What exists is read there all the same.
-- Complexity: O(groups).
if redis.call('EXISTS', KEYS[1]) == 1 and has(groups(KEYS[1]), ARGV[1]) then
  local token = redis.call('HGET', KEYS[2], 'incarnation')
  if token then return {0, token} end
  open(KEYS[2])
  redis.call('HSET', KEYS[2], 'incarnation', ARGV[2])
  return {0, ARGV[2]}
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'incarnation', ARGV[2])
return {1, ARGV[2]}
