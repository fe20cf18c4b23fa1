-- due.lua: moves the entries that are due into their stream, in the order of their due times. An entry is
-- in the set or in the stream, never in both or in neither.
-- KEYS[1] stream  KEYS[2] sorted set: entry → when it is due, in ms since 1970
-- ARGV[1] entries at most  ARGV[2] bytes after which no further entry is moved
-- Reply: {entries moved, entries that still wait, ms until the next one is due; -1: none waits}
-- Errors: that of XADD, for example when the stream's key has another type. The entry then stays in the set.
-- ZREM comes first: a full server (OOM) refuses XADD as the first write of a script, and only then. The
-- entry moves inside the server's memory, and only an entry in the stream can be handled and removed.
-- Complexity: O(entries moved × log entries that wait).
local stream, due = KEYS[1], KEYS[2]
if redis.call('EXISTS', due) == 0 then return {0, 0, -1} end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)

-- fields returns the arguments of XADD. What delay.lua has not written becomes one field, so that the
-- reader can make it a dead letter.
local function fields(entry)
  local values, at = {}, 1
  while at <= #entry do
    local length = string.match(entry, '^(%d+):', at)
    local first = length and at + #length + 1
    local last = length and first + tonumber(length) - 1
    if not length or last > #entry or #values >= 1000 then return {'undecodable', entry} end
    values[#values + 1] = string.sub(entry, first, last)
    at = last + 1
  end
  if #values == 0 or #values % 2 == 1 then return {'undecodable', entry} end
  return values
end

local moved, bytes, wait = 0, 0, 0
while moved < tonumber(ARGV[1]) and bytes < tonumber(ARGV[2]) do
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if #first == 0 then break end
  local entry, at = first[1], tonumber(first[2])
  if at > now then break end
  redis.call('ZREM', due, entry)
  local added = redis.pcall('XADD', stream, '*', unpack(fields(entry)))
  if type(added) == 'table' and added.err then
    redis.call('ZADD', due, string.format('%.0f', at), entry)
    return added
  end
  moved, bytes = moved + 1, bytes + #entry
end
local next = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
if #next == 0 then return {moved, 0, -1} end
return {moved, redis.call('ZCARD', due), math.max(0, tonumber(next[2]) - now)}
