-- count.lua: writes how often entries were delivered, if they are still pending to the consumer. Their
-- idle time does not change. A bare XCLAIM would take entries from other consumers, and would remove
-- deleted entries without a report.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] consumer  ARGV[3…] an entry id and its count, alternating
-- Reply: how many were written.
-- Errors: NOGROUP when stream or group do not exist.
-- Complexity: O(ids × log pending).
local written = 0
for i = 3, #ARGV, 2 do
  local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #mine > 0 and mine[1][4] < tonumber(ARGV[i + 1]) and #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i],
      'IDLE', mine[1][3], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    written = written + 1
  end
end
return written
