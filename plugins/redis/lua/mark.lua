-- mark.lua: records that an instance has a presence. The record outlives the presence.
-- KEYS[1] hash: instance → when it was marked last, in ms
-- ARGV[1] the instance  ARGV[2] 1 also removes old instances  ARGV[3] after how many ms
-- ARGV[4] how many are kept at most
-- Reply: how many were removed.
-- HDEL comes first: a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Complexity: O(1), and O(N log N) when it removes.
local t = redis.call('TIME')
local at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', at))
if ARGV[2] ~= '1' then return 0 end
local flat, all, removed = redis.call('HGETALL', KEYS[1]), {}, 0
for i = 1, #flat, 2 do all[#all + 1] = {flat[i], tonumber(flat[i + 1]) or 0} end
table.sort(all, function(a, b) return a[2] > b[2] end)
for i, one in ipairs(all) do
  if one[1] ~= ARGV[1] and (i > tonumber(ARGV[4]) or at - one[2] > tonumber(ARGV[3])) then
    redis.call('HDEL', KEYS[1], one[1])
    removed = removed + 1
  end
end
return removed
