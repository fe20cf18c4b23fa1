-- claim.lua: claims entries that are idle for long enough. Unlike XAUTOCLAIM it claims only the given
-- ids, so that a reader does not reclaim its own long-running entries.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] consumer  ARGV[3] min_idle in ms  ARGV[4] present consumer; empty: any
-- ARGV[5] added to the delivery count: 1, or 0 when no handler received the entry since
-- ARGV[6…] entry ids
-- Reply: {id, delivery count, {field, value, …}} for each id that was idle. The count includes this
-- delivery. It is 0 when the entry was deleted from the stream, and the entry is then acknowledged.
-- Errors: NOGROUP when stream or group do not exist.
-- Complexity: O(ids × log pending).
local reply = {}
for i = 6, #ARGV do
  local query = {'XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], ARGV[i], ARGV[i], 1}
  if ARGV[4] ~= '' then query[#query + 1] = ARGV[4] end
  local idle = redis.call(unpack(query))
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
