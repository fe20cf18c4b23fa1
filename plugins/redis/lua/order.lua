-- order.lua: stores what an operator orders about a route, and adds it to the audit.
-- KEYS[1] hash: route → "<when, in µs> <1 paused, 0 not> <JSON of who and why>"  KEYS[2] stream: the audit
-- ARGV[1] the route  ARGV[2] 1 to pause it, 0 to resume it  ARGV[3] JSON of who and why
-- ARGV[4] who  ARGV[5] why  ARGV[6] how many routes the hash has at most  ARGV[7] how many entries the audit keeps
-- Reply: 1 changed, 0 the route was so already, -1 the hash is full; then the order that holds now.
-- A resume is stored, too: by its time an instance that has not read it yet knows that its own copy is older.
-- HDEL comes first: a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Complexity: O(1), and O(N) for N routes when the hash is full.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local there = redis.call('HGET', KEYS[1], ARGV[1])
local at, state = string.match(there or '', '^(%d+) ([01]) ')
if (state or '0') == ARGV[2] and (state or not there) then return {0, there or ''} end
redis.call('HDEL', KEYS[1], '')
if not there and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then
  local flat = redis.call('HGETALL', KEYS[1])
  for i = 1, #flat, 2 do
    if string.match(flat[i + 1], '^%d+ 0 ') then redis.call('HDEL', KEYS[1], flat[i]) end
  end
  if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then return {-1, ''} end
end
now = math.max(now, (tonumber(at) or 0) + 1)
local order = string.format('%.0f %s %s', now, ARGV[2], ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], order)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[7], '*', 'route', ARGV[1], 'verb', ARGV[2] == '1' and 'pause' or 'resume', 'by', ARGV[4], 'why', ARGV[5])
return {1, order}
