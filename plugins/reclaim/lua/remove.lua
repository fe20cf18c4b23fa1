-- remove.lua: removes a consumer that holds nothing, and its instance's status. XGROUP DELCONSUMER
-- alone would drop the consumer's pending entries from the group, and no reader would get them again.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] the instance's field in meta
-- Reply: 1 removed, 0 it holds pending entries.
-- Errors: NOGROUP when stream or group are gone.
-- Complexity: O(log pending).
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[3])
return 1
