-- enter.lua: queues a user, or attaches the user to the place or lease that exists. A user has at most one place.
-- ARGV[8] user   ARGV[9] instance that has the connection
-- ARGV[10] index that the user presents, 0 for none: with it there is no new place. Negative: it is not known, so the user is
--          only attached.
-- ARGV[11] purchases that a user may make, 0 for any number: then there is no new place
-- ARGV[12] when the index that the user presents is no longer known, in ms of the server, 0 for never
-- Reply: the place. Code REJECTED: the reason is that of the place.
-- Complexity: O(log N)
local user, instance, cursor = ARGV[8], ARGV[9], tonumber(ARGV[10])
local till = tonumber(ARGV[12])
if till > 0 and clock > till then cursor = -1 end
local l, index = look(user)
if l then
  redis.call('ZREM', GONE, user)
  if l.instanceId ~= instance then
    l.instanceId = instance
    grant(user, l)
  end
  return answer('OK', standing(user, 'attached'))
end

local m = memory(user)
local to = cursor >= 0 and back(user, m, cursor)
if index then
  queue(user, math.min(index, to or index), instance)
  write()
  return answer('OK', standing(user, 'attached', true))
end
if to and room.state ~= 'closed' then
  restore(user, m, to, instance)
  write()
  return answer('OK', standing(user, 'restored', true))
end
if cursor ~= 0 then return answer('OK', standing(user)) end
local drains = room.state == 'draining' or room.state == 'paused' and room.held_from == 'draining'
local refusal = (room.state == 'closed' and closedFor) or (soldOut() and 'sold_out') or (full(user, tonumber(ARGV[11]), 0) and 'bought') or (drains and 'draining') or (room.mode == 'reject' and 'reject')
if refusal then return answer('REJECTED', place('', 0, nil, refusal)) end
index = math.max(newest() + 1, micro)
queue(user, index, instance)
write()
return answer('OK', standing(user, 'new', true))
