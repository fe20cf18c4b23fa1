-- control.lua: changes a room for an operator, and describes it. Each change is added to the audit.
-- ARGV[8] status, open, hold, resume, drain, close, set, message or kick   ARGV[9] operator   ARGV[10] reason   ARGV[11] user
-- ARGV[12…] fields of the room and their values; an empty value removes the field
-- Reply: waiting, leases, free slots, records set aside, then fields and values. Code CONFLICT: not in this state.
-- Complexity: O(log N)
local verb, by, why, user = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local allowed = {
  open = {scheduled = 'open', open = 'open', paused = 'open', draining = 'open', closed = 'open'},
  hold = {open = 'paused'},
  resume = {paused = 'open'},
  drain = {scheduled = 'draining', open = 'draining', paused = 'draining'},
  close = {scheduled = 'closed', open = 'closed', paused = 'closed', draining = 'closed'},
}
local code, details = 'OK', {}
local function put(field, value)
  if value == '' then
    redis.call('HDEL', ROOM, field)
    room[field] = nil
  else
    redis.call('HSET', ROOM, field, value)
    room[field] = value
  end
end
local state = room.state
if allowed[verb] then state = allowed[verb][state] end
if not state then
  code = 'CONFLICT'
elseif verb ~= 'status' then
  if verb == 'open' then
    put('opens_at', '')
    put('closes_at', '')
  end
  for i = 12, #ARGV, 2 do
    put(ARGV[i], ARGV[i + 1])
    details[#details + 1] = ARGV[i] .. '=' .. ARGV[i + 1]
  end
  if verb == 'open' and tonumber(room.opens_at or 0) > clock then state = 'scheduled' end
  if verb == 'kick' then
    leave(user, 'kicked')
    details[#details + 1] = user
  end
  if verb == 'close' then put('closed_at', num(now)) end
  if verb ~= 'kick' and verb ~= 'message' then put('configured', '1') end
  if state ~= room.state then put('state', state) end
  audit(verb, by, why, table.concat(details, ' '))
end
local reply = answer(code, num(redis.call('ZCARD', WAITING)), num(redis.call('ZCARD', LEASES)), num(free()), num(redis.call('HLEN', ASIDE)))
for field, value in pairs(room) do
  reply[#reply + 1] = field
  reply[#reply + 1] = value
end
return reply
