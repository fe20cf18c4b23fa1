-- retain.lua: removes old entries of a stream that other programs read.
-- KEYS[1] stream   KEYS[2] meta (usually absent)
-- ARGV[1] retention in ms   ARGV[2] required groups, one per line, or ''
-- ARGV[3] the limit of entries removed because of their age.
-- Entries older than the retention are removed, whatever has been read. Younger entries are removed when required groups
-- are named, all of them exist, and every group of the stream has acknowledged the entry.
-- Reply: {removed, entries left}; {0, 0} for an absent stream. An old entry that shares its node of the stream with a
-- younger one stays until that is old too. An entry with an id ahead of the clock is as old as the first visit that saw it.
-- Complexity: O(removed) and that of holdings.
local stream = KEYS[1]
if redis.call('EXISTS', stream) == 0 then return {0, 0} end
local oldest = string.format('%.0f-0', math.max(0, now() - tonumber(ARGV[1])))
local removed = redis.call('XTRIM', stream, 'MINID', '~', oldest, 'LIMIT', ARGV[3])
local due = expired(stream, KEYS[2], nil, tonumber(ARGV[1]))
if due and removed < tonumber(ARGV[3]) then
  local n = redis.call('XTRIM', stream, 'MINID', '~', due, 'LIMIT', ARGV[3])
  removed = removed + n
  -- What is left of them is less than a node.
  if n < tonumber(ARGV[3]) then removed = removed + redis.call('XTRIM', stream, 'MINID', '=', due) + redis.call('XDEL', stream, due) end
end

local list, all = groups(stream), ARGV[2] ~= ''
for name in string.gmatch(ARGV[2], '[^\n]+') do all = all and has(list, name) end
if all then removed = removed + trim(stream, holdings(stream, KEYS[2], '', 0, '')) end
return {removed, redis.call('XLEN', stream)}
