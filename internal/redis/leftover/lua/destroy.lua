-- destroy.lua: removes a group that only one subscription read, with what is pending in it.
-- KEYS[1] stream
-- ARGV[1] group  ARGV[2] how long none of its consumers may have been active, in ms
-- Reply: 1 removed, 0 a consumer was active.
-- Errors: NOGROUP or "no such key" when stream or group are gone.
-- Complexity: O(consumers + pending).
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  for i = 1, #flat, 2 do
    local idle = flat[i] == 'idle' and tonumber(flat[i + 1]) or -1 -- miniredis has -1 for a consumer that only read
    if idle >= 0 and idle < tonumber(ARGV[2]) then return 0 end
  end
end
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
return 1
