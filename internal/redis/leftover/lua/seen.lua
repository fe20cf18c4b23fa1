-- seen.lua: marks subscriptions as seen now. Once per interval, over all callers, it also searches for
-- subscriptions that were not seen for a long time. A pause between two searches means that no caller
-- could mark anything: the server was down, or its clock was stepped. Live subscriptions then have the
-- grace to mark themselves again before anything is reported.
-- KEYS[1] hash: subscription → when it was seen last, in ms; looked → when the last search was;
--         looking → since when there was no pause between searches
-- ARGV[1] how long a subscription must not have been seen  ARGV[2] interval of searches
-- ARGV[3] grace, and the longest time between two searches that is no pause; all in ms
-- ARGV[4] most subscriptions in the reply  ARGV[5…] subscriptions seen now
-- Reply: subscriptions that were not seen for that long.
-- HDEL comes first: a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Complexity: O(subscriptions seen now), and O(marked subscriptions) for a search.
local key, after, interval, grace = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local t = redis.call('TIME')
local at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local function set(field, ms) redis.call('HSET', key, field, string.format('%.0f', ms)) end
redis.call('HDEL', key, '')
for i = 5, #ARGV do set(ARGV[i], at) end
local looks = redis.call('HMGET', key, 'looked', 'looking')
local looked, looking = tonumber(looks[1] or nil), tonumber(looks[2] or nil)
if not looked or not looking or looked > at or at - looked > grace then
  looking = at
elseif at - looked < interval then
  return {}
end
set('looked', at)
set('looking', looking)
if at - looking < grace then return {} end
local flat, old = redis.call('HGETALL', key), {}
for i = 1, #flat, 2 do
  if flat[i] ~= 'looked' and flat[i] ~= 'looking' and #old < tonumber(ARGV[4]) and at - (tonumber(flat[i + 1]) or 0) > after then
    old[#old + 1] = flat[i]
  end
end
return old
