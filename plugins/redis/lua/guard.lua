-- guard.lua: stores the shards and the group of a domain, and whether it is exclusive, unless they are stored already.
-- KEYS[1] hash: shards, group, exclusive
-- ARGV[1] shards  ARGV[2] group  ARGV[3] true or false
-- Reply: the three stored values.
-- HDEL comes first: a full server (OOM) refuses HSETNX as the first write of a script, and only then.
-- Complexity: O(1).
redis.call('HDEL', KEYS[1], '')
redis.call('HSETNX', KEYS[1], 'shards', ARGV[1])
redis.call('HSETNX', KEYS[1], 'group', ARGV[2])
redis.call('HSETNX', KEYS[1], 'exclusive', ARGV[3]) -- an earlier version has not stored it
return redis.call('HMGET', KEYS[1], 'shards', 'group', 'exclusive')
