-- work.lua: adds what an instance did since it told it last to what all instances did in this step of time.
-- KEYS[1] hash with a field per step, of which the oldest is used again
-- ARGV[1] length of a step in s  ARGV[2] number of fields, and then of each route: its name, done, failed
-- The step is that of the server's clock, so the clocks of instances do not matter. A field that can't be read is
-- replaced. HDEL comes first: a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Reply: 1.
-- Complexity: O(routes).
local number = math.floor(tonumber(redis.call('TIME')[1]) / tonumber(ARGV[1]))
local field = string.format('%d', number % tonumber(ARGV[2]))
local function isTable(v) return type(v) == 'table' end
local read, step = pcall(cjson.decode, redis.call('HGET', KEYS[1], field) or '')
if not read or not isTable(step) or step.step ~= number or not isTable(step.routes) then
  step = {step = number, routes = {}}
end
for i = 3, #ARGV, 3 do
  local before = step.routes[ARGV[i]]
  if not isTable(before) or not tonumber(before[1]) or not tonumber(before[2]) then before = {0, 0} end
  step.routes[ARGV[i]] = {before[1] + ARGV[i + 1], before[2] + ARGV[i + 2]}
end
if next(step.routes) == nil then step.routes = nil end -- an empty table may become a list
redis.call('HDEL', KEYS[1], field)
redis.call('HSET', KEYS[1], field, cjson.encode(step))
redis.call('PEXPIRE', KEYS[1], string.format('%d', ARGV[1] * ARGV[2] * 1000))
return 1
