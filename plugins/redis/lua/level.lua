-- level.lua: stores the log level that an operator orders for some time, and adds it to the audit.
-- KEYS[1] hash: instance, or "" for all → "<when, in µs> <until, in µs> <level> <JSON of who and why>"
-- KEYS[2] stream: the audit
-- ARGV[1] the instance, or ""  ARGV[2] the level, or "settings" to end what was ordered  ARGV[3] for how long, in µs
-- ARGV[4] JSON of who and why  ARGV[5] who  ARGV[6] why  ARGV[7] how many instances the hash has at most
-- ARGV[8] how many entries the audit keeps  ARGV[9] the duration for the audit
-- Reply: 1 stored, 0 there was nothing to end, -1 the hash is full; then the order that holds now.
-- An order for all takes the place of those for one, and has a later time than each of them, and so has one for an
-- instance. By these times an instance that knows another order knows which one holds.
-- HDEL comes first: a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Complexity: O(N) for N instances with an order.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local at, known, n, set = now, {}, 0, false
local flat = redis.call('HGETALL', KEYS[1])
redis.call('HDEL', KEYS[1], '\n') -- the name of no instance
for i = 1, #flat, 2 do
  local from, till, level = string.match(flat[i + 1], '^(%d+) (%d+) (%a+) ')
  if not from or tonumber(till) <= now then
    redis.call('HDEL', KEYS[1], flat[i])
  else
    known[flat[i]] = level
    n = n + 1
    set = set or level ~= 'settings'
  end
  at = math.max(at, (tonumber(from) or 0) + 1)
end
if ARGV[2] == 'settings' then
  if ARGV[1] ~= '' then set = (known[ARGV[1]] or known[''] or 'settings') ~= 'settings' end
  if not set then return {0, ''} end
end
if ARGV[1] == '' then
  redis.call('DEL', KEYS[1])
elseif not known[ARGV[1]] and n >= tonumber(ARGV[7]) then
  return {-1, ''}
end
local order = string.format('%.0f %.0f %s %s', at, now + tonumber(ARGV[3]), ARGV[2], ARGV[4])
redis.call('HSET', KEYS[1], ARGV[1], order)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[8], '*', 'instance', ARGV[1], 'level', ARGV[2], 'for', ARGV[9], 'by', ARGV[5], 'why', ARGV[6])
return {1, order}
