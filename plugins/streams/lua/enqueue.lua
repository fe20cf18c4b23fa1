-- enqueue.lua: adds entries to a stream that exists and has its group.
-- KEYS[1] stream   KEYS[2] meta   KEYS[3] wake-up stream; absent in a cluster
-- ARGV[1] group   ARGV[2] grace of foreign groups in ms   ARGV[3] required groups, one per line
-- ARGV[4] this deployment's id, or ''   ARGV[5] max_len   ARGV[6] number of entries
-- ARGV[7] what is added to the wake-up stream: the id   ARGV[8] and this instance
-- ARGV[9…] per entry: the number of words that follow, then field, value, field, value …
-- Reply: the number of added entries, a prefix; fewer than given when max_len is reached.
--        -1 when the stream or its group is absent: activate, create, add again.
-- Errors: FOREIGN with the owner, when the stream belongs to another deployment: nothing was added.
-- Complexity: O(entries); at max_len also that of holdings and O(entries trimmed).
local stream, meta, max, total = KEYS[1], KEYS[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local foreign, free = ownership(meta, ARGV[4])
if foreign then return foreign end
if redis.call('EXISTS', stream) == 0 then return -1 end
if not has(groups(stream), ARGV[1]) then return -1 end

local room = max - redis.call('XLEN', stream)
if room < total then
  room = room + trim(stream, holdings(stream, meta, ARGV[1], tonumber(ARGV[2]), ARGV[3]))
end

if free and room > 0 then redis.call('HSET', meta, 'owner', ARGV[4]) end
local added, at = 0, 9
while added < total and added < room do
  local words = tonumber(ARGV[at])
  redis.call('XADD', stream, 'NOMKSTREAM', '*', unpack(ARGV, at + 1, at + words))
  at = at + 1 + words
  added = added + 1
end
-- A wake-up stream that can't be used costs the poll interval, and not the entries.
if added > 0 and KEYS[3] then
  redis.pcall('XADD', KEYS[3], 'MAXLEN', '~', 1000, '*', 'id', ARGV[7], 'by', ARGV[8])
end
return added
