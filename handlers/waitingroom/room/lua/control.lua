-- control.lua: changes a room for an operator, and describes it. Each change is added to the audit.
-- ARGV[8] status, open, hold, resume, drain, close, set, message or kick   ARGV[9] operator   ARGV[10] reason   ARGV[11] user
-- ARGV[12] secret and ARGV[13] commitment of a shuffle   ARGV[14…] fields of the room and their values; an empty value
--          removes the field. The field change is the id of this change. With the field preview nothing is changed, and
--          the field would of the reply is the state that the room would have.
-- Reply: waiting, leases, free slots, records set aside, then fields and values, of which hold is the rest of the pause
--        after an outage in ms. Code CONFLICT: not in this state. Code TIMES: closes_at is in the past, or not after
--        opens_at.
-- Complexity: O(log N)
local verb, by, why, user = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local allowed = {
  open = {scheduled = 'open', ['pre-queue'] = 'pre-queue', drawing = 'drawing', open = 'open', paused = 'open', draining = 'open', closed = 'open'},
  hold = {scheduled = 'paused', open = 'paused', draining = 'paused'},
  resume = {paused = room.held_from or 'open'},
  drain = {scheduled = 'draining', open = 'draining', paused = 'draining'},
  close = {scheduled = 'closed', ['pre-queue'] = 'closed', drawing = 'closed', open = 'closed', paused = 'closed', draining = 'closed'},
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
local fields = {}
for i = 14, #ARGV, 2 do fields[ARGV[i]] = ARGV[i + 1] end
local state = room.state
if allowed[verb] then state = allowed[verb][state] end

-- A room is drawn at most once. Each user of its pre-queue has entered after the commitment.
local shuffle = fields.mode == 'shuffle'
local begins = verb == 'open' and (fields.mode or room.mode) == 'shuffle' and not room.cut
if verb == 'open' and shuffle and room.cut or verb == 'set' and shuffle and not room.commitment then state = nil end
if begins and state ~= 'pre-queue' then state = total() == 0 and 'pre-queue' or nil end
-- Once the first users are removed, until all are: those behind would keep places that those in front have lost.
if room.state == 'closed' and verb == 'open' and (room.frozen or room.removing == '1') then state = nil end

-- The times that the room would have. An end that has passed, or is before the opening, would close the room at once.
local function timeAfter(field) return tonumber(fields[field] or verb == 'set' and room[field] or 0) or 0 end
local opens, closes = timeAfter('opens_at'), timeAfter('closes_at')
local sets = fields.opens_at or fields.closes_at
local wrong = sets and closes > 0 and (closes <= opens or fields.closes_at and closes <= clock)

-- The client library sends a change again when the reply was lost. The ids of the last ten changes are kept.
local id = fields.change or ''
local ids = room.changes or ''
if id ~= '' and string.find(ids, id, 1, true) then
  verb = 'status'
elseif not state then
  code = 'CONFLICT'
elseif wrong then
  code = 'TIMES'
end
if verb == 'open' and state == 'open' and opens > clock then state = 'scheduled' end
if fields.preview then
  if code == 'OK' then room.would = state end
elseif code == 'OK' and verb ~= 'status' then
  if verb == 'open' then
    put('opens_at', '')
    put('closes_at', '')
  end
  for i = 14, #ARGV, 2 do
    if ARGV[i] ~= 'change' then
      put(ARGV[i], ARGV[i + 1])
      details[#details + 1] = ARGV[i] .. '=' .. ARGV[i + 1]
    end
  end
  -- A lower capacity may be a mistake: only a sale closes the room, because its users then lose their places.
  if verb == 'open' or fields.capacity then put('last_seat', '') end
  if begins and not room.commitment then
    put('secret', ARGV[12])
    put('commitment', ARGV[13])
    details[#details + 1] = 'commitment=' .. ARGV[13]
  end
  if verb == 'open' and state == 'pre-queue' and not shuffle and not room.opens_at then put('opens_at', num(clock)) end
  if verb == 'kick' then
    leave(user, 'kicked')
    details[#details + 1] = user
  end
  if verb == 'hold' then put('held_from', room.state) end
  if verb == 'close' then put('closed_at', num(now)) end
  if verb == 'open' or verb == 'close' then put('closed_for', '') end
  if verb ~= 'kick' and verb ~= 'message' then put('configured', '1') end
  if state ~= room.state then put('state', state) end
  put('changes', string.sub(id .. ' ' .. ids, 1, 10 * (#id + 1)))
  audit(verb, by, why, table.concat(details, ' '))
end
if created and code ~= 'OK' then redis.call('DEL', ROOM) end
room.secret = nil
room.hold = num(math.max(0, tonumber(room.hold_until) - now))
local reply = answer(code, num(total()), num(redis.call('ZCARD', LEASES)), num(free()), num(redis.call('HLEN', ASIDE)))
for field, value in pairs(room) do
  reply[#reply + 1] = field
  reply[#reply + 1] = value
end
return reply
