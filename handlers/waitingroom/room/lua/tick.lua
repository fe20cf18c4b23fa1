-- tick.lua: ends leases, removes absent users, promotes in the order of the indexes, and writes the rank table.
-- It does nothing when the last tick was less than 0.9 intervals ago, unless that one has more to do.
-- With too few replicas ARGV[8] is 0. The time of the room then stands still.
-- ARGV[8] most promotions   ARGV[9] suffix of the new leases' ids   ARGV[10] highest tick that the caller has seen
-- ARGV[11] clear_after in ms   ARGV[12] 1: the sale of the last seat closes the room
-- ARGV[13] instance that ticks; empty: not known
-- Reply: 1 when it ran. Then promoted, expired, abandoned, removed, set aside. Then 1 when there is more to do.
--        Then the gap in ms, the rest of the hold in ms, and 1 when the room was cleared. Then 1 when the server is another
--        one or its clock went back. The last value is the rank table.
-- Complexity: O(M · log N) for at most 500 members M, and about 450 ranks
local batch, known = tonumber(ARGV[8]), tonumber(ARGV[10])
local MOST, HOLD = 500, 10000
local raw = clock - tonumber(room.stopped)
local elapsed = raw - ticked
local again = room.more == '1' and math.abs(elapsed) < 0.9 * interval
if not again and elapsed < 0.9 * interval and elapsed > -limit then return answer('OK', '0') end

-- A full server refuses this write, as it refuses signs of life: then no user is removed. The write changes nothing.
redis.call('HSETNX', ROOM, 'state', '')

-- A gap, or another server, is no absence of users.
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
local other = run ~= '' and room.run_id and room.run_id ~= '' and run ~= room.run_id or run == '' and tonumber(room.tick) < known
local rewound = (other or elapsed <= -limit) and '1' or '0'
local recovers = rewound == '1' or elapsed > limit
local set = {}
local function put(field, value)
  room[field] = value
  set[#set + 1] = field
  set[#set + 1] = value
end
local gap = 0
if recovers then
  gap = math.max(0, elapsed)
  now, stopped, again = ticked, clock - ticked, false
  put('stopped', num(stopped))
  put('epoch', num(clock))
  -- A broker may have signed before none of several outages.
  put('gap', num(gap + (ticked < tonumber(room.hold_until) and tonumber(room.gap or 0) or 0)))
  put('hold_until', num(now + HOLD))
elseif batch == 0 and not again then -- no token can be shown or verified, so no lease ends
  now, stopped = ticked, clock - ticked
  put('stopped', num(stopped))
elseif not again then
  now, stopped = raw, tonumber(room.stopped)
end
local held = now < tonumber(room.hold_until)
if not again then
  put('tick', num(math.max(tonumber(room.tick), known) + 1))
  put('tick_at', num(now))
  if ARGV[13] ~= '' then put('tick_by', ARGV[13]) end
  if run ~= '' then put('run_id', run) end
  if not recovers then
    local perMinute = tonumber(room.per_minute)
    if perMinute then
      local most = math.max(1, 2 * perMinute * interval / 60000)
      put('credit', string.format('%.4f', math.min(most, tonumber(room.credit or 0) + perMinute * elapsed / 60000)))
    end
  end
  if room.state == 'scheduled' and room.opens_at and clock >= tonumber(room.opens_at) then
    put('state', 'open')
    audit('open', 'schedule', 'opens_at has passed', '')
  end
  if room.state ~= 'closed' and room.closes_at and clock >= tonumber(room.closes_at) then
    put('state', 'closed')
    put('closed_at', num(now))
    audit('close', 'schedule', 'closes_at has passed', '')
  end
  if room.state ~= 'closed' and ARGV[12] == '1' and room.last_seat then
    put('state', 'closed')
    put('closed_at', num(now))
    put('closed_for', 'sold_out')
    closedFor = 'sold_out'
    audit('close', 'schedule', 'all seats are sold', 'sold=' .. room.sold)
  end
end

local more, promoted, expired, abandoned, removed, aside = false, 0, 0, 0, 0, 0
local budget, kept = MOST, math.min(batch, MOST / 2) -- kept: for promotions
local function due(key, time)
  local list = budget > kept and redis.call('ZRANGEBYSCORE', key, '-inf', num(time), 'LIMIT', 0, budget - kept) or {}
  budget = budget - #list
  return list
end
if not held then
  for _, user in ipairs(due(LEASES, now)) do
    finish(user, lease(user), 'EXPIRED', 'lease_over')
    expired = expired + 1
  end
  if release then
    for _, user in ipairs(due(GONE, now - seenTime)) do
      finish(user, lease(user), 'ABANDONED', 'abandoned')
      abandoned = abandoned + 1
    end
  end
  for _, user in ipairs(due(SEEN, now - absence)) do
    local index = waits(user)
    unqueue(user)
    if index then keep(user, index, 'grace') end
    removed = removed + 1
  end
  for _, name in ipairs(due(FORGET, now)) do
    local kind, id = string.sub(name, 1, 1), string.sub(name, 2)
    local m = kind == 'u' and memory(id)
    if m and m.absent > m.void then
      m.void, m.absent = m.absent, 0
      remember(id, m, HOUR - TEN)
    else
      redis.call('ZREM', FORGET, name)
      redis.call('HDEL', m and LEFT or ENDED, id)
      if m and m.void > tonumber(room.forgotten) then put('forgotten', num(m.void)) end
    end
  end
end

more = budget == kept
-- The characters between these quotes are the same in JSON.
local USER, INSTANCE = '^{"userId":"([ !#-%[%]-~]+)"}$', ',"instanceId":"([ !#-%[%]-~]+)"}$'
local function user(text)
  local plain = string.match(text, USER)
  if plain and #plain <= 128 then return plain end
  local one = decode(text)
  local name = one and one.userId
  if type(name) ~= 'string' or string.find(name, '%c') then return nil end
  local _, characters = string.gsub(name, '[^\128-\191]', '')
  return characters > 0 and characters <= 128 and name or nil
end
if not held and (room.state == 'open' or room.state == 'draining') then
  local slots, credit = free(), room.per_minute and room.mode ~= 'pass-through' and math.floor(tonumber(room.credit or 0)) or math.huge
  local able = math.min(slots, credit)
  local most = math.min(able, batch, budget)
  local names, texts, indexes, found, taken = {}, {}, {}, {}, {}
  local heads = most > 0 and redis.call('ZRANGE', WAITING, 0, most - 1, 'WITHSCORES') or {}
  local users = {}
  for i = 1, #heads, 2 do users[#users + 1] = user(heads[i]) or '' end -- no user is ''
  local leased = #users > 0 and redis.call('ZMSCORE', LEASES, unpack(users))
  local seen = #users > 0 and redis.call('ZMSCORE', SEEN, unpack(users))
  local records = #users > 0 and redis.call('HMGET', RECORD, unpack(users))
  if #users > 0 then -- a key of another type ends the script here, before a user is taken off the queue
    redis.call('HLEN', LEASE)
    redis.call('HLEN', USERS)
    redis.call('XLEN', ENTRY)
    redis.call('HLEN', ASIDE)
  end
  for i, name in ipairs(users) do
    local text, index = heads[2 * i - 1], tonumber(heads[2 * i])
    local reason = name == '' and 'undecodable' or (taken[name] or leased[i]) and 'has a lease' or nil
    if reason then
      redis.call('ZREM', WAITING, text)
      redis.call('HSET', ASIDE, text, reason)
      aside = aside + 1
    elseif tonumber(seen[i] or now) <= now - absence then -- its removal is late
      redis.call('ZREM', WAITING, text)
      unqueue(name)
      keep(name, index, 'grace')
      removed = removed + 1
    else
      promoted, taken[name] = promoted + 1, true
      names[promoted], texts[promoted], indexes[promoted], found[promoted] = name, text, index, records[i] or ''
    end
  end
  if promoted > 0 then
    local granted, tokens = {}, {}
    for i, name in ipairs(names) do
      local instance = string.match(found[i], INSTANCE)
      if not instance then
        local record = decode(found[i]) or {}
        instance = type(record.instanceId) == 'string' and record.instanceId or ''
      end
      local jti = num(indexes[i]) .. '-' .. ARGV[9]
      pair(granted, name, leaseText({jti = jti, idx = indexes[i], state = 'READY', ['until'] = now + readyTime, since = clock, instanceId = instance}))
      pair(tokens, TOKEN .. name, jti)
      redis.call('XADD', ENTRY, '*', 'userId', name, 'eventId', event, 'instanceId', instance)
    end
    put('served', num(math.max(tonumber(room.served), indexes[promoted])))
    redis.call('ZREM', WAITING, unpack(texts))
    redis.call('HDEL', RECORD, unpack(names))
    redis.call('HDEL', USERS, unpack(names))
    redis.call('ZREM', SEEN, unpack(names))
    redis.call('HSET', LEASE, unpack(granted))
    redis.call('MSET', unpack(tokens))
    redis.call('ZADD', LEASES, unpack(scored(num(now + readyTime), names)))
    if release then -- a sign of life shows that there is a connection
      redis.call('ZADD', GONE, unpack(scored(num(now), names)))
    end
    put('promoted', num(tonumber(room.promoted) + promoted))
    redis.call('HINCRBY', ROOM, 'ready', promoted)
    if credit < math.huge then put('credit', string.format('%.4f', tonumber(room.credit) - promoted)) end
  end
  more = more or most > 0 and #heads == 2 * most and able > promoted
elseif room.state == 'closed' then
  local key = room.frozen and FROZEN or WAITING
  local heads = redis.call('ZRANGE', key, 0, math.max(0, budget - 1), 'WITHSCORES')
  for i = 1, #heads, 2 do
    local name, index = user(heads[i]), tonumber(heads[i + 1])
    if name and waits(name) == index then -- a frozen user may have left
      unqueue(name)
      close(name, index, closedFor)
    end
    redis.call('ZREM', key, heads[i])
    removed = removed + 1
  end
  more = more or #heads == 2 * budget
  put('removing', #heads == 2 * budget and '1' or '0')
  if room.frozen and not more then
    redis.call('HDEL', ROOM, 'frozen')
    room.frozen, more = nil, true
  end
elseif not held and room.state == 'pre-queue' and room.opens_at and clock >= tonumber(room.opens_at) then
  -- After a hold, in which lost users are restored.
  local size = redis.call('ZCARD', WAITING)
  if size > 0 then redis.call('RENAME', WAITING, FROZEN) end
  cut = math.max(newest(), micro)
  given(cut + size)
  write()
  put('state', 'drawing')
  put('cut', num(cut))
  put('cohort', num(size))
  put('drawn', '0')
  put('frozen', '1')
  audit('freeze', 'schedule', 'opens_at has passed', 'users=' .. num(size))
end

local count, waiting, slots = redis.call('ZCARD', WAITING), total(), free()
local leases = redis.call('ZCARD', LEASES)

-- A room without users is cleared after its time. The audit stays, and so do the seats and purchases of a sale that nobody
-- has closed: its next user creates the room again.
local empty = waiting == 0 and leases == 0
if not empty then
  if room.empty_since then redis.call('HDEL', ROOM, 'empty_since') end
elseif not room.empty_since then
  put('empty_since', num(now))
end
local idle = empty and now - tonumber(room.empty_since) or 0
local over = room.state == 'closed' and empty and now - tonumber(room.closed_at) >= tonumber(ARGV[11])
if over or room.state ~= 'closed' and room.configured ~= '1' and idle >= HOUR then
  if over then
    audit('clear', 'schedule', 'clear_after has passed', '')
    redis.call('UNLINK', BUYERS, SOLD)
  elseif tonumber(room.sold) > 0 then
    redis.call('SET', SOLD, room.sold)
  end
  redis.call('UNLINK', WAITING, RECORD, USERS, LAST, SLOTS, ENTRY, LEASES, LEASE, ENDED, SEEN, LEFT, ASIDE, ROOM, TABLE, GONE, FORGET, FROZEN,
    ORDER, META)
  return answer('OK', '1', '0', num(expired), num(abandoned), num(removed), '0', '0', num(gap), '0', '1', rewound, '')
end

put('more', more and '1' or '0')
redis.call('HSET', ROOM, unpack(set))
redis.call('HSET', SLOTS, event, num(slots))

-- The first 100 ranks are exact. The distance of the next ones grows to 5 % of the rank, slowly at first: there a user more
-- or less is a large error. The first ones are read together.
local TOGETHER = 320
local points = {}
local function add(rank, index) points[#points + 1] = string.format('[%.0f,%.0f]', index, rank) end
local first = redis.call('ZRANGE', WAITING, 0, TOGETHER - 1, 'WITHSCORES')
local rank = 0
while rank < math.max(count - 1, math.min(count, 100)) do
  local one = rank < TOGETHER and first[2 * rank + 2] or redis.call('ZRANGE', WAITING, rank, rank, 'WITHSCORES')[2]
  add(rank, tonumber(one))
  rank = rank + (rank < 100 and 1 or math.max(1, math.floor(math.min(rank / 20, (rank / 160) ^ 2))))
end
if count > 100 then add(count - 1, tonumber(redis.call('ZRANGE', WAITING, -1, -1, 'WITHSCORES')[2])) end
local hold = math.max(0, tonumber(room.hold_until) - now)
local ready = math.max(0, math.min(leases, tonumber(redis.call('HGET', ROOM, 'ready') or 0)))

-- How users keep their slots: for each part of the time of a lease, how many ended early in it, and how many seconds
-- leases were in it. Then the sales, and all ends. What was long ago counts less. flow also collects the ends of the
-- leases, as the time that is left in ms, if there are few of them, or else at equal distances.
local SAMPLES = 50
local flow, ends, inside = {}, {}, {}
for n in string.gmatch(room.flow or '', '%S+') do flow[#flow + 1] = tonumber(n) end
for i = 1, 2 * PARTS + 2 do flow[i] = flow[i] or 0 end
local function sample(score, leases)
  local left = math.max(0, tonumber(score) - now)
  ends[#ends + 1] = num(left)
  inside[part(left)] = (inside[part(left)] or 0) + leases
end
if leases > 0 and leases <= SAMPLES then
  local list = redis.call('ZRANGE', LEASES, 0, -1, 'WITHSCORES')
  for i = 2, #list, 2 do sample(list[i], 1) end
elseif leases > 0 then
  for i = 1, SAMPLES do
    local at = math.floor((i - 0.5) * leases / SAMPLES)
    sample(redis.call('ZRANGE', LEASES, at, at, 'WITHSCORES')[2], leases / SAMPLES)
  end
end
if not again and not recovers and batch > 0 then
  local share, known = math.exp(-elapsed / (3 * tokenTime)), {}
  for i = 1, 2 * PARTS + 2 do flow[i] = flow[i] * share end
  for i = 0, PARTS - 1 do
    local early = tonumber(room['early' .. i])
    if early then
      known[#known + 1] = 'early' .. i
      flow[1 + i] = flow[1 + i] + early
      flow[2 * PARTS + 2] = flow[2 * PARTS + 2] + early
    end
    flow[1 + PARTS + i] = flow[1 + PARTS + i] + (inside[i] or 0) * elapsed / 1000
  end
  if #known > 0 then redis.call('HDEL', ROOM, unpack(known)) end
  flow[2 * PARTS + 1] = flow[2 * PARTS + 1] + math.max(0, tonumber(room.sold) - tonumber(room.sold_before or room.sold))
  flow[2 * PARTS + 2] = flow[2 * PARTS + 2] + expired
  for i = 1, #flow do flow[i] = string.format('%.3f', flow[i]) end
  redis.call('HSET', ROOM, 'flow', table.concat(flow, ' '), 'sold_before', room.sold)
end

local limits = room.mode ~= 'pass-through'
local text = string.format(
  '{"asOf":%.0f,"tick":%s,"epoch":%s,"roomState":"%s","waiting":%.0f,"served":%s,"free":%.0f,"ready":%.0f,"admitted":%.0f,"sold":%s,' ..
  '"capacity":%s,"concurrency":%s,"perMinute":%s,"hold":%.0f,"flow":[%s],"ends":[%s],"tokenTime":%.0f,"readyTime":%.0f,"opensAt":%s,"cut":%s,"commitment":"%s",' ..
  '"message":%s,"ranks":[%s]}',
  clock, room.tick, room.epoch, room.state, waiting, room.served, slots, ready, leases - ready, room.sold, room.capacity or '-1',
  limits and room.concurrency or '-1', limits and room.per_minute or '-1', hold,
  table.concat(flow, ','), table.concat(ends, ','), tokenTime, readyTime, room.opens_at or '0',
  room.cut or '0', room.commitment or '',  cjson.encode(room.message or ''), table.concat(points, ','))
redis.call('SET', TABLE, text, 'PX', 10000)
return answer('OK', '1', num(promoted), num(expired), num(abandoned), num(removed), num(aside), more and '1' or '0', num(gap), num(hold), '0', rewound, text)
