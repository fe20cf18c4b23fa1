-- seen.lua: takes the signs of life of users. A user that is missing gets its index and its lease back.
-- ARGV[8] instance   ARGV[9…] at most 500 signs: user, index, id of its lease, end of it (server time in ms), 1: disconnected
-- Reply: a place per sign
-- Complexity: O(signs · log N)
local instance = ARGV[8]

-- In the hold, the ends that brokers have are from before the gap.
local base, shift = tonumber(room.stopped), now < tonumber(room.hold_until) and tonumber(room.gap or 0) or 0
local function finishAt(ends) return math.min(now + tokenTime, ends - base + shift) end

local function sign(user, index, jti, ends, gone)
  local l, waits = look(user)
  if waits and jti == '' and (index == 0 or index >= waits) then -- nothing to restore
    redis.call('ZADD', SEEN, num(now), user)
    return place('WAITING', waits, nil, '', 'attached')
  end
  local m, how = memory(user), 'attached'
  local to = index > 0 and back(m, index)
  if l and l.state == 'READY' and l.jti == jti and ends > 0 then -- a failover lost the claim
    l.state, l['until'] = 'ADMITTED', finishAt(ends)
    redis.call('HINCRBY', ROOM, 'ready', -1)
    grant(user, l)
  elseif not l and jti ~= '' and index > m.void and redis.call('HEXISTS', ENDED, jti) == 0 then
    if waits then unqueue(user) end
    if m.absent > 0 then
      m.absent = 0
      remember(user, m, HOUR)
    end
    l = {jti = jti, idx = index, state = 'ADMITTED', ['until'] = finishAt(ends), instanceId = instance}
    if ends == 0 then
      l.state, l['until'] = 'READY', now + readyTime
      redis.call('HINCRBY', ROOM, 'ready', 1)
    end
    grant(user, l)
    given(index)
    how = 'restored'
  elseif not l and waits then
    if to and to < waits then
      queue(user, to, instance)
    else
      redis.call('ZADD', SEEN, num(now), user)
    end
  elseif not l and to and room.state ~= 'closed' then
    restore(user, m, to, instance)
    how = 'restored'
  end
  if l and gone and release then
    redis.call('ZADD', GONE, num(now), user)
  elseif l and release then
    redis.call('ZREM', GONE, user)
  end
  return standing(user, how)
end

local reply = answer('OK')
for i = 9, #ARGV, 5 do
  reply[#reply + 1] = sign(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4] == '1')
end
return reply
