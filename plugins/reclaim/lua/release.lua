-- release.lua: ends a lease.
-- KEYS[1] meta
-- ARGV[1] the instance
-- Reply: 1 done, 0 when the lease was another's already, or meta is gone.
-- The field reclaim:cursor is of older versions.
-- Complexity: O(1).
if redis.call('HGET', KEYS[1], 'reclaim:by') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'reclaim:by', 'reclaim:until', 'reclaim:cursor')
return 1
