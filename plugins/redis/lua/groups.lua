-- groups.lua: functions about the consumer groups of a stream, which the scripts that trim share. It is put in front of
-- each of them; it touches nothing by itself. Written for Redis 7.0, Valkey 8 and miniredis.

-- now returns the server's clock in milliseconds since 1970.
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- allowWrites makes the writes that follow pass on a server that is full (OOM). The server refuses only the first
-- write of a script, and only when that write may need memory. HDEL is a write that needs none. The field does not exist.
local function allowWrites(meta) redis.call('HDEL', meta, '') end

-- groups returns a list of {name, pending, last} for every group of a stream that exists.
-- Complexity: O(groups).
local function groups(stream)
  local list = {}
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local g = {}
    for i = 1, #flat, 2 do g[flat[i]] = flat[i + 1] end
    list[#list + 1] = {name = g['name'], pending = tonumber(g['pending']), last = g['last-delivered-id']}
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

-- has returns whether one of the groups has that name.
local function has(list, name)
  for _, g in ipairs(list) do
    if g.name == name then return true end
  end
  return false
end

-- unread returns the id of the first entry after last, or nil. Complexity: O(log N).
-- Not lag and not last-generated-id: both can be wrong after deletions. The server refuses to look
-- after the largest id of all.
local function unread(stream, last)
  if last == '18446744073709551615-18446744073709551615' then return nil end
  local e = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)
  if #e == 0 then return nil end
  return e[1][1]
end

-- before compares two entry ids. Their halves are unsigned 64-bit numbers, which a Lua number
-- can't hold, so they are compared as decimal text.
local function before(a, b)
  local function halves(id)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    return ms or id, seq or '0'
  end
  local function less(x, y)
    if #x ~= #y then return #x < #y end
    return x < y
  end
  local ams, aseq = halves(a)
  local bms, bseq = halves(b)
  if ams ~= bms then return less(ams, bms) end
  return less(aseq, bseq)
end

-- earlier returns the lesser of two entry ids, either of which may be nil.
local function earlier(a, b)
  if not a or (b and before(b, a)) then return b end
  return a
end

-- holdings returns what the groups of a stream hold back. A group holds what is pending to it and what it has not read.
-- The own group and the required groups count always. Any other group is foreign: it counts for at most the grace,
-- from the first visit that saw it hold what the others have released. After that it is ignored until it has released
-- that too. Where the own group is missing, every group counts.
-- meta remembers in `foreign` (JSON) per foreign group since when it delays, and the last entry that it must release.
-- Arguments: own is a name, grace is in ms, required are names, one per line.
-- Result: has is whether the own group exists. pending is over all groups. dry is set when no group
-- that counts holds anything. mark changes whenever a group that counts receives an entry. ownDry is
-- set when the own group holds nothing. bound is the first entry that a group that counts holds.
-- count is how many groups count. delaying is a list of {name, ms, ignored}. foreign is the new text
-- for meta, or nil when it is unchanged.
-- Complexity: O(groups × log N + groups × consumers).
local function holdings(stream, meta, own, grace, required)
  local list, at = groups(stream), now()
  local v = {has = has(list, own), pending = 0, dry = true, mark = {}, count = 0, delaying = {}}
  local known, others = {}, {}
  local text = redis.call('HGET', meta, 'foreign')
  if text then known = cjson.decode(text) end
  local function counts(g)
    v.count = v.count + 1
    v.mark[v.count] = g.last
    v.bound = earlier(v.bound, g.bound)
  end
  for _, g in ipairs(list) do
    v.pending = v.pending + g.pending
    if g.pending > 0 then g.oldest = redis.call('XPENDING', stream, g.name)[2] or nil end
    g.bound = earlier(g.oldest, unread(stream, g.last))
    if g.name == own then v.ownDry = not g.bound end
    if not v.has or g.name == own or string.find('\n' .. required .. '\n', '\n' .. g.name .. '\n', 1, true) then
      counts(g)
    else
      others[#others + 1] = g
    end
  end
  local released, seen, changed, left = v.bound, {}, false, 0
  for _, g in ipairs(others) do
    local k = known[g.name]
    if k and not before(g.last, k[2]) and not (g.oldest and not before(k[2], g.oldest)) then
      k, changed = nil, true
    end
    if not k and g.bound and (not released or before(g.bound, released)) then
      local to = redis.call('XREVRANGE', stream, released and '(' .. released or '+', '-', 'COUNT', 1)[1]
      k, changed = {string.format('%.0f', at), to and not before(to[1], g.bound) and to[1] or g.bound}, true
    end
    local ignored = false
    if k then
      if tonumber(k[1]) > at then k[1], changed = string.format('%.0f', at), true end
      seen[g.name], left = k, left + 1
      ignored = at - tonumber(k[1]) >= grace
      v.delaying[#v.delaying + 1] = {g.name, at - tonumber(k[1]), ignored and 1 or 0}
    end
    if not ignored then counts(g) end
  end
  for name in pairs(known) do
    if not seen[name] then changed = true end
  end
  if changed then v.foreign = left > 0 and cjson.encode(seen) or '' end
  v.dry = not v.bound
  if v.count == 0 then v.dry = redis.call('XLEN', stream) == 0 end
  if not v.has then v.ownDry = redis.call('XLEN', stream) == 0 end
  v.mark = table.concat(v.mark, ',')
  return v
end

-- expired returns the newest entry whose time to stay is over although its id is ahead of the server's clock, or nil.
-- A producer may set the id of an entry, and Redis continues from it, so such an id says nothing about the entry's age.
-- meta therefore remembers in `ahead` the newest of these entries that might go, and since when. The next one is
-- remembered when that entry is gone, so entries go between one keep and two after they were released.
-- Arguments: held is the first entry that may not go yet, or nil. keep is in ms.
-- Complexity: O(log N).
local function expired(stream, meta, held, keep)
  local at, note = now(), redis.call('HGET', meta, 'ahead')
  local id, since = string.match(note or '', '^(%S+) (%d+)$')
  local due = id and tonumber(since) <= at and at - tonumber(since) >= keep
  if due and #redis.call('XRANGE', stream, id, id) == 1 then return id end
  if id and not due and tonumber(since) <= at then return nil end
  local newest = redis.call('XREVRANGE', stream, held and '(' .. held or '+', '-', 'COUNT', 1)[1]
  allowWrites(meta)
  if newest and tonumber(string.match(newest[1], '^%d+') .. '.0') > at then -- .0: miniredis reads no larger integer
    redis.call('HSET', meta, 'ahead', newest[1] .. ' ' .. string.format('%.0f', at))
  elseif note then
    redis.call('HDEL', meta, 'ahead')
  end
  return nil
end

-- storeForeign writes the result of holdings about foreign groups into meta.
local function storeForeign(meta, v)
  if not v.foreign then return end
  allowWrites(meta)
  if v.foreign == '' then
    redis.call('HDEL', meta, 'foreign')
  else
    redis.call('HSET', meta, 'foreign', v.foreign)
  end
end

-- trim removes the entries that every group that counts has been given and has acknowledged, and returns how many.
-- Without such a group nothing has been read, so nothing is removed. Complexity: O(removed).
local function trim(stream, v)
  if v.count == 0 then return 0 end
  if not v.bound then return redis.call('XTRIM', stream, 'MAXLEN', 0) end
  return redis.call('XTRIM', stream, 'MINID', '=', v.bound)
end
