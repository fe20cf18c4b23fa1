-- waiting.lua: counts the entries of a stream that a group has not got.
-- KEYS[1] stream   ARGV[1] last id that the group has got   ARGV[2] how many entries up to it may be counted
-- Reply: the number; -1: there are more entries up to that id.
-- Complexity: O(entries up to the last id), which are in flight or not trimmed yet, and a copy of them inside the server.
local got = #redis.call('XRANGE', KEYS[1], '-', ARGV[1], 'COUNT', ARGV[2] + 1)
if got > tonumber(ARGV[2]) then return -1 end
return redis.call('XLEN', KEYS[1]) - got
