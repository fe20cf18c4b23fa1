-- ack.lua: acknowledges entries, but only those that are still pending to the consumer. XACK itself would
-- also acknowledge what another reader has reclaimed and is working on.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] consumer  ARGV[3…] entry ids
-- Reply: how many were acknowledged.
-- Errors: NOGROUP when stream or group are gone.
-- Complexity: O(ids × log pending).
local acked = 0
for i = 3, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0 then
    acked = acked + redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  end
end
return acked
