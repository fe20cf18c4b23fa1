-- retain.lua: removes old entries of a stream that other programs read.
-- KEYS[1] stream   KEYS[2] meta (read only, usually absent)
-- ARGV[1] retention in ms   ARGV[2] required groups, one per line, or ''
-- ARGV[3] the limit of entries removed because of their age.
-- Entries older than the retention are removed, whatever has been read. Younger entries are removed when required groups
-- are named, all of them exist, and every group of the stream has acknowledged the entry.
-- Reply: {removed, entries left}; {0, 0} for an absent stream. An old entry that shares its node of the stream with a
-- younger one stays until that is old too.
-- Complexity: O(removed) and that of look.
local stream = KEYS[1]
if redis.call('EXISTS', stream) == 0 then return {0, 0} end
local oldest = string.format('%.0f-0', math.max(0, now() - tonumber(ARGV[1])))
local removed = redis.call('XTRIM', stream, 'MINID', '~', oldest, 'LIMIT', ARGV[3])

local list, all = groups(stream), ARGV[2] ~= ''
for name in string.gmatch(ARGV[2], '[^\n]+') do all = all and has(list, name) end
if all then removed = removed + trim(stream, look(stream, KEYS[2], '', 0, '')) end
return {removed, redis.call('XLEN', stream)}
