-- release.lua: ends a lease and leaves the cursor for the next reclaimer.
-- KEYS[1] meta
-- ARGV[1] the instance   ARGV[2] cursor, '' for the beginning
-- Reply: 1 done, 0 when the lease was another's already, or meta is gone.
-- Complexity: O(1).
if redis.call('HGET', KEYS[1], 'reclaim:by') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'reclaim:by', 'reclaim:until')
redis.call('HSET', KEYS[1], 'reclaim:cursor', ARGV[2])
return 1
