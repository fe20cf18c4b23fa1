-- remove.lua: removes a consumer from its group if nothing is pending to it. XGROUP DELCONSUMER alone would
-- drop the consumer's pending entries for good.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] consumer
-- Reply: 1 removed (or never there), 0 it holds pending entries.
-- Errors: NOGROUP when stream or group are gone.
-- Complexity: O(log pending).
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
