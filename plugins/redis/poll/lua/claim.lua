-- claim.lua: takes over entries that are idle for long enough. Unlike XAUTOCLAIM it takes only what it is told to, so
-- that a reader doesn't reclaim from itself what it has held for too long; and it counts a delivery only when told to.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] consumer  ARGV[3] min_idle in ms  ARGV[4] who has them now; empty: whoever it is
-- ARGV[5] added to the times delivered: 1, or 0 when nobody was given them since they were counted  ARGV[6…] entry ids
-- Reply: for every id that was idle {id, times delivered, this time included, {field, value, …}};
-- times delivered is 0 when the entry was deleted from the stream (it is no longer pending then).
-- Errors: NOGROUP when stream or group are gone.
-- Complexity: O(ids × log pending).
local reply = {}
for i = 6, #ARGV do
  local ask = {'XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], ARGV[i], ARGV[i], 1}
  if ARGV[4] ~= '' then ask[#ask + 1] = ARGV[4] end
  local idle = redis.call(unpack(ask))
  if #idle > 0 then
    local count = math.max(1, idle[1][4] + tonumber(ARGV[5]))
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'RETRYCOUNT', count)
    if #claimed > 0 and claimed[1] then
      reply[#reply + 1] = {ARGV[i], count, claimed[1][2]}
    else
      redis.call('XACK', KEYS[1], ARGV[1], ARGV[i]) -- XCLAIM has done so already since Redis 7.0, but not in miniredis
      reply[#reply + 1] = {ARGV[i], 0, {}}
    end
  end
end
return reply
