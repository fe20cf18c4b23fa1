-- state.lua: stores what an instance says about itself.
-- KEYS[1] its key
-- ARGV[1] the JSON  ARGV[2] time to live in ms
-- DEL comes first: a full server (OOM) refuses SET as the first write of a script, and only then.
-- Complexity: O(1).
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
