-- keep.lua: sets the idle time of entries that are still pending to the consumer, without counting a
-- delivery. A bare XCLAIM … JUSTID would take entries from consumers that reclaimed them.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] consumer  ARGV[3] idle time in ms: 0 keeps alive, min_idle releases
-- ARGV[4…] entry ids
-- Reply: for each id 1 (done), 0 (no longer this consumer's), -1 (deleted from the stream).
-- Errors: NOGROUP when stream or group do not exist.
-- Complexity: O(ids × log pending).
local reply = {}
for i = 4, #ARGV do
  local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #mine == 0 then
    reply[#reply + 1] = 0
  else
    -- RETRYCOUNT writes the count that is there: miniredis counts a delivery otherwise.
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i],
      'IDLE', ARGV[3], 'RETRYCOUNT', mine[1][4], 'JUSTID')
    reply[#reply + 1] = #claimed > 0 and 1 or -1
  end
end
return reply
