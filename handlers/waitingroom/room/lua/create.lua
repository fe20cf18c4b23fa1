-- create.lua: creates the room of an event without configuration. It is open, and its capacity is unknown.
-- KEYS[1] room
-- ARGV[1] end of the room by its schedule (server time in ms), 0 without one
-- Reply: 1, 0 when there is a room, or -1 when that end has passed: then there is no new room
-- Complexity: O(1)
if redis.call('HEXISTS', KEYS[1], 'state') == 1 then return 0 end
local time = redis.call('TIME')
local clock = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
if tonumber(ARGV[1]) > 0 and tonumber(ARGV[1]) <= clock then return -1 end
local text = string.format('%.0f', clock)
local info = redis.pcall('INFO', 'server') -- a failover before the first tick is one, too
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
redis.call('HSET', KEYS[1], 'state', 'open', 'mode', 'fifo', 'sold', 0, 'promoted', 0, 'served', 0, 'tick', 0, 'tick_at', text,
  'stopped', 0, 'hold_until', 0, 'epoch', 0, 'forgotten', string.format('%.0f', (clock - 3600000) * 1000), 'ready', 0, 'created', text,
  'run_id', run)
return 1
