-- guard.lua: stores the shards and the group of a domain, unless they are stored already.
-- KEYS[1] hash: shards, group
-- ARGV[1] shards  ARGV[2] group
-- Reply: the stored shards and group.
-- HDEL comes first: a full server (OOM) refuses HSETNX as the first write of a script, and only then.
-- Complexity: O(1).
redis.call('HDEL', KEYS[1], '')
redis.call('HSETNX', KEYS[1], 'shards', ARGV[1])
redis.call('HSETNX', KEYS[1], 'group', ARGV[2])
return redis.call('HMGET', KEYS[1], 'shards', 'group')
