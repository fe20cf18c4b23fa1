-- presence.lua: renews or releases an instance's presence, only while the key is still its own.
-- KEYS[1] presence key
-- ARGV[1] token of this instance  ARGV[2] time to live in ms; 0 releases the presence
-- Reply: 1 renewed or released; 2 created, there was none; 0 another instance has it.
-- DEL comes first: a full server (OOM) refuses SET as the first write of a script, and only then.
-- Complexity: O(1).
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
if not holder and tonumber(ARGV[2]) > 0 then return 2 end
return 1
