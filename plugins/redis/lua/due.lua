-- due.lua: moves the entries that are due into their stream, in the order of their due times. An entry is
-- in the set or in the stream, never in both or in neither.
-- KEYS[1] stream  KEYS[2] sorted set: entry → when it is due, in ms since 1970
-- ARGV[1] entries at most  ARGV[2] bytes after which no further entry is moved
-- Reply: {entries moved, entries that still wait, ms until the next one is due, at most 1e12; -1: none waits}
-- Errors: that of XADD, for example when the stream's key has another type. The entry then stays in the set.
-- An entry is also due when its time is one that delay.lua can't have written, because no delay is that long: another
-- program has written it, in microseconds for example, and the entry would never move.
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

-- isDue takes an entry and the text of its time, such as "1700000000000" or "-inf", which miniredis can't read.
local longest = 9.3e12 -- ms: more than the 292 years of the longest delay; pipeline.DueTime has the same limit
local function isDue(e)
  local at = tonumber(e[2])
  return not at or at <= now or at - now > longest
end

-- next returns an entry that is due, or the one that will be due first. It is empty when none waits.
local function next()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if #first == 0 or isDue(first) then return first end
  local last = redis.call('ZRANGE', due, -1, -1, 'WITHSCORES')
  return isDue(last) and last or first
end

local moved, bytes, e = 0, 0, next()
while moved < tonumber(ARGV[1]) and bytes < tonumber(ARGV[2]) and #e > 0 and isDue(e) do
  redis.call('ZREM', due, e[1])
  local added = redis.pcall('XADD', stream, '*', unpack(fields(e[1])))
  if type(added) == 'table' and added.err then
    redis.call('ZADD', due, e[2], e[1])
    return added
  end
  moved, bytes, e = moved + 1, bytes + #e[1], next()
end
if #e == 0 then return {moved, 0, -1} end
return {moved, redis.call('ZCARD', due), isDue(e) and 0 or math.min(1e12, tonumber(e[2]) - now)}
