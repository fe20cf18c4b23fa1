-- new.lua: in front of the scripts that create a room.

-- new creates the room of an event without configuration, with the key of what was sold in earlier ones. It is open, and
-- its capacity is unknown. Its epoch is new, so brokers that have users of a room that was lost send their signs at once.
local function new(key, sold)
  local time = redis.call('TIME')
  local text = string.format('%.0f', math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000))
  local info = redis.pcall('INFO', 'server') -- a failover before the first tick is one, too
  local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
  redis.call('HSET', key, 'state', 'open', 'mode', 'fifo', 'sold', redis.call('GET', sold) or 0, 'promoted', 0, 'served', 0, 'tick', 0,
    'tick_at', text, 'stopped', 0, 'hold_until', 0, 'epoch', text, 'forgotten', string.format('%.0f', (tonumber(text) - 3600000) * 1000),
    'ready', 0, 'created', text, 'run_id', run)
end
