-- past.lua: reads what all instances did, by step of time (see work.lua).
-- KEYS[1] hash with a field per step
-- ARGV[1] length of a step in s
-- Reply: the step that is not over, by the clock of this server, and then each step.
-- Complexity: O(steps).
local all = {string.format('%d', math.floor(tonumber(redis.call('TIME')[1]) / tonumber(ARGV[1])))}
local fields = redis.call('HGETALL', KEYS[1])
for i = 2, #fields, 2 do all[#all + 1] = fields[i] end
return all
