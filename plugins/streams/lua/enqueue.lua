-- enqueue.lua: adds entries to a stream that exists and has its group.
-- KEYS[1] stream
-- ARGV[1] group   ARGV[2] max_len   ARGV[3] number of entries
-- ARGV[4…] per entry: the number of words that follow, then field, value, field, value …
-- Reply: how many were added, a prefix of what was given, fewer when max_len is reached;
--        -1 when the stream or its group is absent: activate, create, add again.
-- Complexity: O(entries); at max_len also O(entries trimmed).
local stream, max, total = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('EXISTS', stream) == 0 then return -1 end
local list = groups(stream)
if not has(list, ARGV[1]) then return -1 end

local room = max - redis.call('XLEN', stream)
if room < total then room = room + trim(stream, list) end

local added, at = 0, 4
while added < total and added < room do
  local words = tonumber(ARGV[at])
  redis.call('XADD', stream, 'NOMKSTREAM', '*', unpack(ARGV, at + 1, at + words))
  at = at + 1 + words
  added = added + 1
end
return added
