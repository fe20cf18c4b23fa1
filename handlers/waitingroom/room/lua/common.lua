-- common.lua: in front of the scripts of a room. It reads the room and the time, and ends the script when there is no room.
-- Written for Redis 7.0, Valkey 8 and miniredis.
-- KEYS: the 22 keys of the event in the order of keys.go, then the prefix of its token keys. All have the same slot.
-- ARGV[1] event   ARGV[2] promote_interval in ms   ARGV[3] ready_ttl   ARGV[4] token_ttl   ARGV[5] grace + seen_interval
-- ARGV[6] seen_interval   ARGV[7] 1: the slot of a promoted user without a connection is released
-- Reply: a code, the server's time in ms, and 1 when the last tick is not recent. Then what the script says. A place is
--        {state, index, jti, end, reason, how, ahead, promoted}; its times are in ms of the server.
local WAITING, RECORD, USERS, LAST, SLOTS, ENTRY, LEASES, LEASE, ENDED, SEEN, LEFT, ASIDE, ROOM, TABLE, AUDIT, GONE, FORGET, FROZEN, ORDER, BUYERS, SOLD, META, TOKEN = unpack(KEYS)
local event, interval, readyTime, tokenTime = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local absence, seenTime, release = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'

local time = redis.call('TIME')
local micro = tonumber(time[1]) * 1000000 + tonumber(time[2])
local clock = math.floor(micro / 1000)

-- Many users have the same times.
local numbers = {}
local function num(n)
  -- As the key of a table, a smaller number would fill an array up to it in the embedded server.
  if n < 2^26 then return string.format('%.0f', n) end
  numbers[n] = numbers[n] or string.format('%.0f', n)
  return numbers[n]
end

local room, flat = {}, redis.call('HGETALL', ROOM)
for i = 1, #flat, 2 do room[flat[i]] = flat[i + 1] end
if not room.state then return {'UNKNOWN', num(clock), '0'} end

-- The time of the room is the server's time without the outages. It stops when there is no tick, and never goes back.
-- Leases, signs of life and what is remembered are kept in it. So an outage ends nothing.
local ticked = tonumber(room.tick_at)
local limit = math.max(5000, 3 * interval)
local now = math.max(ticked, math.min(clock - tonumber(room.stopped), ticked + limit))
local stopped = clock - now

-- Without a recent tick the event may be missing from the set of events.
local late = clock - tonumber(room.stopped) - ticked > 2 * interval and '1' or '0'
local function answer(code, ...) return {code, num(clock), late, ...} end

local function decode(text)
  if not text then return nil end
  local ok, value = pcall(cjson.decode, text)
  return ok and type(value) == 'table' and value or nil
end

-- Only these two characters of a valid user have a form of their own in JSON.
local function member(user) return '{"userId":"' .. string.gsub(user, '["\\]', '\\%0') .. '"}' end

-- quote returns the JSON of a text. Few instances have many leases.
local quoted = {}
local function quote(text)
  quoted[text] = quoted[text] or cjson.encode(text)
  return quoted[text]
end

local function toLease(text)
  local l = decode(text)
  if l and type(l.jti) == 'string' and type(l.idx) == 'number' and type(l.state) == 'string' and type(l['until']) == 'number' then return l end
end

-- verified reports whether a session of a shop has a lease, or had one that has ended. Then the user may be paying.
local function verified(l) return type(l.by) == 'string' and l.by ~= '' end

local function lease(user) return toLease(redis.call('HGET', LEASE, user)) end

-- Since the pre-queue was frozen, places up to this index are in FROZEN alone, and have no order.
local cut = tonumber(room.cut or 0)

-- frozen returns the index of a user in the frozen pre-queue, or nil. A user that has left stays in it, without a record.
local function frozen(user)
  return room.frozen and tonumber(redis.call('ZSCORE', FROZEN, member(user)) or nil)
end

-- waits returns the index of a user that waits, or nil.
local function waits(user)
  local index = redis.call('ZSCORE', WAITING, member(user))
  if index then return tonumber(index) end
  return room.frozen and redis.call('HEXISTS', RECORD, user) == 1 and frozen(user) or nil
end

-- look returns the lease of a user, or else the index of one that waits.
local function look(user)
  local l = lease(user)
  if l then return l end
  return nil, waits(user)
end

local function toMemory(stored)
  local m = decode(stored) or {}
  local function text(v) return type(v) == 'string' and v or '' end
  return {void = tonumber(m.void) or 0, absent = tonumber(m.absent) or 0, reason = text(m.reason), shop = text(m.shop)}
end

-- memory returns what is remembered of a user. Up to the index void the user left or used up a turn.
-- A user that was removed as absent is restored at the index absent.
local function memory(user) return toMemory(redis.call('HGET', LEFT, user)) end

local HOUR, TEN = 3600000, 600000

-- named returns the member of a JSON object that names the shop, or nothing without one.
local function named(shop)
  if (shop or '') == '' then return '' end
  return ',"shop":' .. quote(shop)
end

local function note(user, m)
  redis.call('HSET', LEFT, user, string.format('{"void":%.0f,"absent":%.0f,"reason":%s,"at":%.0f%s}', m.void, m.absent, cjson.encode(m.reason), clock, named(m.shop)))
end

local function remember(user, m, duration)
  note(user, m)
  redis.call('ZADD', FORGET, num(now + duration), 'u' .. user)
end

-- close makes all places of a user up to an index void. shop is that of the lease that has ended with them, if there was one.
local function close(user, index, reason, shop)
  local m = memory(user)
  if index > m.void or shop then m.shop = shop or '' end
  if index >= m.void then m.void, m.reason = index, reason end
  if m.absent <= m.void then m.absent = 0 end
  remember(user, m, HOUR)
end

-- keep leaves the index behind: the user may come back to it for ten minutes.
local function keep(user, index, reason)
  local m = memory(user)
  if index <= m.void then return end
  m.absent, m.reason, m.shop = index, reason, ''
  remember(user, m, TEN)
end

-- newest returns the highest index that was given.
local highest, raised
local function newest()
  highest = highest or tonumber(redis.call('HGET', LAST, event) or 0)
  return highest
end

-- back returns the index at which a user is restored, or nil. index is the one that the user or its broker presents.
-- A user of the pre-queue that was not frozen is restored at the end.
local function back(user, m, index)
  local absent, own = m.absent > m.void, index > m.void and index > tonumber(room.forgotten)
  local to = absent and (m.absent > cut or m.absent == frozen(user)) and m.absent or nil
  if own and index > cut and (not to or index < to) then to = index end
  if not to and (absent or own) then to = math.max(newest() + 1, micro) end
  return to
end

-- pass makes the writes that follow pass on a full server. The server refuses only the first write of a script, and only
-- when that write may need memory. HDEL needs none. Scripts that end a lease or a place use it.
local function pass() redis.call('HDEL', ROOM, '') end

local function unqueue(user)
  redis.call('ZREM', WAITING, member(user))
  redis.call('HDEL', RECORD, user)
  redis.call('HDEL', USERS, user)
  redis.call('ZREM', SEEN, user)
end

local function pair(list, a, b) list[#list + 1], list[#list + 2] = a, b end

-- scored returns the arguments of a ZADD that gives all users one score.
local function scored(score, users)
  local list = {}
  for _, user in ipairs(users) do pair(list, score, user) end
  return list
end

-- given, signed and queue collect what write writes: with many users, one command per key.
local waiting, records, ids, signs = {}, {}, {}, {}

-- given makes sure that an index is never given again.
local function given(index)
  if index > newest() then highest, raised = index, true end
end

local function signed(user) signs[#signs + 1] = user end

-- queue puts a user at an index, which may be lower than that at which the user waits. A frozen user stays frozen.
local function queue(user, index, instance)
  if index > cut then pair(waiting, num(index), member(user)) end
  pair(records, user, string.format('{"userId":%s,"eventId":"%s","idx":%.0f,"instanceId":%s}', cjson.encode(user), event, index, quote(instance)))
  pair(ids, user, 'true')
  signed(user)
  given(index)
end

local function write()
  if #waiting > 0 then redis.call('ZADD', WAITING, unpack(waiting)) end
  if #records > 0 then
    redis.call('HSET', RECORD, unpack(records))
    redis.call('HSET', USERS, unpack(ids))
  end
  if #signs > 0 then redis.call('ZADD', SEEN, unpack(scored(num(now), signs))) end
  if raised then redis.call('HSET', LAST, event, num(highest)) end
  waiting, records, ids, signs, raised = {}, {}, {}, {}, false
end

-- restore queues a missing user again, and deletes the absence.
local function restore(user, m, index, instance)
  if m.absent > 0 then
    m.absent = 0
    remember(user, m, HOUR)
  end
  queue(user, index, instance)
end

-- leaseText returns the record of a lease. since is its promotion by the server's time. started is when it was claimed, in
-- the time of the room, and 0 while it was not extended. shop is the name of the shop that sent the last request about it.
local function leaseText(l)
  return string.format('{"jti":%s,"idx":%s,"state":"%s","until":%s,"since":%s,"started":%s,"instanceId":%s,"by":%s%s}',
    cjson.encode(l.jti), num(l.idx), l.state, num(l['until']), num(l.since or 0), num(l.started or 0), quote(l.instanceId or ''), quote(l.by or ''), named(l.shop))
end

local function grant(user, l)
  redis.call('HSET', LEASE, user, leaseText(l))
  redis.call('ZADD', LEASES, num(l['until']), user)
  redis.call('SET', TOKEN .. user, l.jti)
end

-- over remembers how a lease ended, and for which session of a shop, and makes the user's indexes up to void useless. A READY one whose time is over leaves
-- its index behind.
local function over(user, l, state, reason, void)
  redis.call('HSET', ENDED, l.jti, string.format('{"state":"%s","reason":"%s","at":%.0f,"by":%s}', state, reason, clock, quote(l.by or '')))
  if state == 'SOLD' then
    redis.call('ZREM', FORGET, 'j' .. l.jti)
  else
    redis.call('ZADD', FORGET, num(now + HOUR), 'j' .. l.jti)
  end
  if state == 'EXPIRED' and l.state == 'READY' then
    keep(user, l.idx, reason)
  else
    close(user, void, reason, l.shop or '')
  end
end

-- ended returns how a lease ended, or nil.
local function ended(jti)
  local e = decode(redis.call('HGET', ENDED, jti))
  return e and type(e.state) == 'string' and type(e.reason) == 'string' and e or nil
end

-- The time of a lease has ten parts. part returns that in which a lease with so much time left is, 0 to 9.
local PARTS = 10
local function part(left) return math.max(0, math.min(PARTS - 1, math.floor(PARTS * (tokenTime - left) / tokenTime))) end

-- finish ends a lease, which frees its slot. A broker may have a newer index of the user than the lease has.
local function finish(user, l, state, reason)
  redis.call('ZREM', LEASES, user)
  redis.call('ZREM', GONE, user)
  redis.call('HDEL', LEASE, user)
  redis.call('DEL', TOKEN .. user)
  if not l then return end
  if l.state == 'READY' then redis.call('HINCRBY', ROOM, 'ready', -1) end
  if state ~= 'EXPIRED' then -- the next tick learns from it how long users keep a slot
    redis.call('HINCRBY', ROOM, 'early' .. (l.state == 'READY' and 0 or part(l['until'] - now)), 1)
  end
  over(user, l, state, reason, math.max(l.idx, newest()))
end

-- leave ends every place of a user, also one that a failover lost: the void index is the newest of all.
local function leave(user, reason)
  pass()
  local void = math.max(newest() + 1, micro)
  given(void)
  write()
  if redis.call('ZSCORE', LEASES, user) then finish(user, lease(user), 'ABANDONED', reason) end
  unqueue(user)
  close(user, void, reason)
end

local function audit(verb, by, why, details)
  redis.call('XADD', AUDIT, 'MAXLEN', '~', 10000, '*', 'at', num(clock), 'by', by, 'verb', verb, 'why', why, 'detail', details)
end

-- free returns how many slots are free. It is 0 while the capacity is unknown.
local function free()
  local capacity = tonumber(room.capacity)
  if not capacity then return 0 end
  local most = capacity - tonumber(room.sold)
  if room.mode ~= 'pass-through' and room.concurrency then most = math.min(most, tonumber(room.concurrency)) end
  return math.max(0, most - redis.call('ZCARD', LEASES))
end

-- soldOut reports whether all seats are sold. The leases that exist have no seat left, either. Without a sale the number
-- of seats may not be final: a capacity of 0 is a limit.
local function soldOut()
  local sold = tonumber(room.sold)
  return room.capacity and sold > 0 and sold >= tonumber(room.capacity)
end

-- full reports whether a user has no purchase left. limit is how many a user may make, 0 for any number, and pending is how
-- many more a shop is making.
local function full(user, limit, pending)
  return limit > 0 and tonumber(redis.call('HGET', BUYERS, user) or 0) + pending >= limit
end

-- The reason of users without a place in a closed room.
local closedFor = room.closed_for or 'room_closed'

local function place(state, index, l, reason, how, ahead)
  if l then return {state, num(index), l.jti, num(l['until'] + stopped), reason or '', how or '', '-1', num(l.since or 0)} end
  return {state, num(index), '', '0', reason or '', how or '', ahead and num(ahead) or '-1', '0'}
end

-- total returns how many users wait.
local function total()
  if room.frozen and room.state ~= 'closed' then return redis.call('HLEN', RECORD) end
  return redis.call('ZCARD', WAITING) + redis.call('ZCARD', FROZEN)
end

-- Before the draw no user has a position.
local ranks = room.state ~= 'pre-queue' and not room.frozen

-- standing describes a user: the lease, the place, or why there is none.
local function standing(user, how, ranked)
  local l, index = look(user)
  if l then return place(l.state, l.idx, l, '', how) end
  if index then return place('WAITING', index, nil, '', how, ranked and ranks and redis.call('ZRANK', WAITING, member(user))) end
  local reason = memory(user).reason
  if reason == '' then reason = room.state == 'closed' and closedFor or 'unknown' end
  return place('', 0, nil, reason, how)
end

