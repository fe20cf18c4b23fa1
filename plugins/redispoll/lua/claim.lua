-- claim.lua: takes over entries that are idle for long enough, whoever has them. Unlike XAUTOCLAIM it takes only
-- what it is told to, so that a reader doesn't reclaim from itself what it has held for too long.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] consumer  ARGV[3] min_idle in ms  ARGV[4…] entry ids
-- Reply: for every id that was idle {id, times delivered, this time included, {field, value, …}};
-- times delivered is 0 when the entry was deleted from the stream (it is no longer pending then).
-- Errors: NOGROUP when stream or group are gone.
-- Complexity: O(ids × log pending).
local reply = {}
for i = 4, #ARGV do
  local idle = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], ARGV[i], ARGV[i], 1)
  if #idle > 0 then
    local count = idle[1][4] + 1
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'RETRYCOUNT', count)
    if #claimed > 0 and claimed[1] then
      reply[#reply + 1] = {ARGV[i], count, claimed[1][2]}
    else
      reply[#reply + 1] = {ARGV[i], 0, {}}
    end
  end
end
return reply
