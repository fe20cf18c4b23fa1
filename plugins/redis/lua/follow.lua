-- follow.lua: reads the entries of a capped stream after a position, without a group.
-- KEYS[1] stream
-- ARGV[1] position: the id of an entry, 0-0 before the first, or empty for the end of the stream
-- ARGV[2] entries at most
-- Reply: {new position, 1 if entries may have been missed, entries}. They may have been missed when
--        the entry at the position is gone: trimmed, or lost by the server.
-- Complexity: O(log N) and O(entries).
local stream, at = KEYS[1], ARGV[1]
local entries = {}
local largest = '18446744073709551615-18446744073709551615' -- the server refuses to look after it
if at ~= '' and at ~= largest then entries = redis.call('XRANGE', stream, '(' .. at, '+', 'COUNT', ARGV[2]) end
if #entries == 0 then
  local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
  local last = #newest == 0 and '0-0' or newest[1][1]
  return {last, at ~= '' and last ~= at and 1 or 0, {}}
end
local missed
if at == '0-0' then
  local info = {}
  local flat = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
  missed = tonumber(info['entries-added'] or info['length']) > tonumber(info['length'])
else
  missed = #redis.call('XRANGE', stream, at, at) == 0
end
return {entries[#entries][1], missed and 1 or 0, entries}
