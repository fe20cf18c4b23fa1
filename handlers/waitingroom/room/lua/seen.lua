-- seen.lua: takes the signs of life of users. A user that is missing gets its index and its lease back.
-- ARGV[8] instance   ARGV[9] most time of a lease in ms   ARGV[10…] at most 250 signs: user, index, id of its lease, end of it (server time in ms), 1: disconnected
-- Reply: a place per sign, or only its index if the user waits and nothing was restored
-- Complexity: O(signs · log N)
local instance, longest = ARGV[8], tonumber(ARGV[9])

-- In the hold, the ends that brokers have are from before the gap.
local base, shift = tonumber(room.stopped), now < tonumber(room.hold_until) and tonumber(room.gap or 0) or 0
local function finishAt(ends) return math.min(now + longest, ends - base + shift) end

local users, members, done = {}, {}, {}
for i = 10, #ARGV, 5 do
  users[#users + 1], members[#members + 1] = ARGV[i], member(ARGV[i])
end
local leases, indexes = redis.call('HMGET', LEASE, unpack(users)), redis.call('ZMSCORE', WAITING, unpack(members))
local left

-- find returns the lease of a user, or else the index of one that waits. The first sign of a user may have changed it.
local function find(i, user)
  if done[user] then
    write()
    return look(user)
  end
  local l = toLease(leases[i])
  if l then return l end
  return nil, tonumber(indexes[i]) or room.frozen and waits(user) or nil
end

local function sign(i, user, index, jti, ends, gone)
  local l, waits = find(i, user)
  if waits and jti == '' and (index == 0 or index >= waits) then -- nothing to restore
    signed(user)
    return num(waits)
  end
  left = left or redis.call('HMGET', LEFT, unpack(users))
  local m, how = done[user] and memory(user) or toMemory(left[i]), 'attached'
  local to = index > 0 and back(user, m, index)
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
      waits = to
    else
      signed(user)
    end
  elseif not l and to and room.state ~= 'closed' then
    restore(user, m, to, instance)
    waits, how = to, 'restored'
  end
  if l and gone and release and not verified(l) then
    redis.call('ZADD', GONE, num(now), user)
  elseif l and release then
    redis.call('ZREM', GONE, user)
  end
  if l then return place(l.state, l.idx, l, '', how) end
  if waits and not room.frozen then return place('WAITING', waits, nil, '', how) end
  write()
  return standing(user, how)
end

local reply = answer('OK')
for i, user in ipairs(users) do
  local at = 5 + 5 * i
  reply[#reply + 1] = sign(i, user, tonumber(ARGV[at + 1]), ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4] == '1')
  done[user] = true
end
write()
return reply
