-- trim.lua: removes the entries that all groups that count have acknowledged. These are the groups
-- that read the stream here, the required groups, and each foreign group within its grace.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] groups that read it here, one per line   ARGV[2] grace of foreign groups in ms
-- ARGV[3] those and the required groups, one per line
-- ARGV[4] keep in ms: entries with a younger id stay; 0: none do. An entry with an id ahead of the clock stays for that
--         long after all groups that count had acknowledged it.
-- Reply: {trimmed, entries left, delaying, losers}; delaying has {name, milliseconds, ignored} per
--        foreign group that delays trimming. losers is how many groups that read it here lost an
--        entry that they had not read. Nothing is trimmed while a group that reads the stream is
--        missing. It is created again at 0, and receives all that it had not acknowledged.
-- Trimming comes first: on a full server it frees memory, and it lets the writes after it pass.
-- Complexity: that of holdings and O(entries trimmed).
local stream, meta = KEYS[1], KEYS[2]
if redis.call('EXISTS', stream) == 0 then return {0, 0, {}, 0} end
local list, own, reading = groups(stream), nil, {}
for name in string.gmatch(ARGV[1], '[^\n]+') do
  if not has(list, name) then return {0, redis.call('XLEN', stream), {}, 0} end
  own, reading[name] = name, true
end
-- Each visit notes the first entry that a group has not read. Only another program removes it before
-- the group has read it.
local losers, notes = 0, {}
for _, g in ipairs(list) do
  if reading[g.name] then
    local field = 'unread:' .. g.name
    local known, first = redis.call('HGET', meta, field), unread(stream, g.last)
    if known and before(g.last, known) and #redis.call('XRANGE', stream, known, known) == 0 then losers = losers + 1 end
    if known ~= (first or false) then notes[field] = first or '' end
  end
end
local v, keep = holdings(stream, meta, own, tonumber(ARGV[2]), ARGV[3]), tonumber(ARGV[4])
if keep > 0 and v.count > 0 then
  local young, due = string.format('%.0f-0', math.max(0, now() - keep)), expired(stream, meta, v.bound, keep)
  if due and not before(due, young) then young = unread(stream, due) end
  v.bound = earlier(v.bound, young)
end
local trimmed = trim(stream, v)
storeForeign(meta, v)
for field, first in pairs(notes) do
  allowWrites(meta)
  if first == '' then
    redis.call('HDEL', meta, field)
  else
    redis.call('HSET', meta, field, first)
  end
end
return {trimmed, redis.call('XLEN', stream), v.delaying, losers}
