-- trim.lua: removes the entries that every group that counts has been given and has acknowledged.
-- KEYS[1] stream   KEYS[2] meta (read only)
-- ARGV[1] group   ARGV[2] grace of foreign groups in ms   ARGV[3] required groups, one per line
-- ARGV[4] this deployment's id, or ''
-- Reply: how many were removed; 0 for an absent stream.
-- Errors: FOREIGN with the owner, when the stream belongs to another deployment: nothing was removed.
-- Complexity: that of look and O(removed).
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local foreign = ownership(KEYS[2], ARGV[4])
if foreign then return foreign end
return trim(KEYS[1], look(KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]))
