-- rescue.lua: claims what is pending to a consumer whose instance is dead. XAUTOCLAIM can't choose by
-- consumer, and between an XPENDING and an XCLAIM of a client somebody else may have claimed.
-- KEYS[1] stream
-- ARGV[1] group   ARGV[2] the claiming consumer   ARGV[3] the dead one
-- ARGV[4] least idle time in ms   ARGV[5] most entries
-- Reply: {entries, lost}: entries as {id, times delivered, {field, value, …}}, each delivered once more
--        by this; lost as ids that were pending but whose entries are deleted: they are acknowledged.
-- Errors: NOGROUP when stream or group are gone.
-- Complexity: O(entries × log pending), after O(pending of the dead consumer).
local stream, group = KEYS[1], ARGV[1]
local pending = redis.call('XPENDING', stream, group, 'IDLE', ARGV[4], '-', '+', ARGV[5], ARGV[3])
if #pending == 0 then return {{}, {}} end
local claim = {'XCLAIM', stream, group, ARGV[2], 0}
for _, p in ipairs(pending) do claim[#claim + 1] = p[1] end
local fields = {}
for _, e in ipairs(redis.call(unpack(claim))) do
  if e then fields[e[1]] = e[2] end
end
local entries, lost = {}, {}
for _, p in ipairs(pending) do
  if fields[p[1]] then
    entries[#entries + 1] = {p[1], p[4] + 1, fields[p[1]]}
  else
    redis.call('XACK', stream, group, p[1])
    lost[#lost + 1] = p[1]
  end
end
return {entries, lost}
