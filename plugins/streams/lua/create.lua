-- create.lua: makes stream, group (at 0) and meta where they are missing, and adopts a stream that has no owner.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group    ARGV[2] a fresh incarnation token   ARGV[3] this deployment's id, or ''
-- Reply: {1, token} when the group was made, {0, incarnation} when it was there already.
--        A missing group means that the stream is new, lost or replaced, whatever meta contains. It
--        gets the fresh token, so that the loss is noticed.
-- Errors: FOREIGN with the owner, when the stream belongs to another deployment: nothing was written.
--         OOM on a full server, when the group is missing. An existing group can be read there.
-- Complexity: O(groups).
local stream, meta, own = KEYS[1], KEYS[2], ARGV[3]
local foreign, free = ownership(meta, own)
if foreign then return foreign end

local made = 0
if redis.call('EXISTS', stream) == 0 or not has(groups(stream), ARGV[1]) then
  redis.call('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
  redis.call('DEL', meta)
  made, free = 1, own ~= ''
end
if free then
  allowWrites(meta)
  redis.call('HSET', meta, 'owner', own)
end
local token = redis.call('HGET', meta, 'incarnation')
if not token then
  token = ARGV[2]
  allowWrites(meta)
  redis.call('HSET', meta, 'incarnation', token)
end
return {made, token}
