-- work.lua: adds what an instance did since it told it last to what all instances did in this step of time.
-- KEYS[1] hash with a field per step, of which the oldest is used again
-- ARGV[1] length of a step in s  ARGV[2] number of fields, and then of each route: its name, done, failed
-- The step is that of the server's clock, so that clocks of instances do not matter.
-- Complexity: O(routes).
local now = redis.call('TIME')
local number = math.floor(tonumber(now[1]) / tonumber(ARGV[1]))
local field = string.format('%d', number % tonumber(ARGV[2]))
local step = {step = number, routes = {}}
local held = redis.call('HGET', KEYS[1], field)
if held then
  local before = cjson.decode(held)
  if before.step == number then step = before end
end
for i = 3, #ARGV, 3 do
  local sum = step.routes[ARGV[i]] or {0, 0}
  step.routes[ARGV[i]] = {sum[1] + tonumber(ARGV[i + 1]), sum[2] + tonumber(ARGV[i + 2])}
end
redis.call('HSET', KEYS[1], field, cjson.encode(step))
redis.call('EXPIRE', KEYS[1], ARGV[1] * ARGV[2])
return 1
