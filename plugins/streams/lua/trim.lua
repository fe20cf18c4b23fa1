-- trim.lua: removes the entries that every group has been given and has acknowledged.
-- KEYS[1] stream
-- Reply: how many were removed; 0 for an absent stream.
-- Complexity: O(groups + removed).
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return trim(KEYS[1], groups(KEYS[1]))
