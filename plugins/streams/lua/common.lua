-- common.lua: functions the other scripts of this folder share. It is put in front of each of
-- them; it touches nothing by itself. Written for Redis 7.0, Valkey 8 and miniredis.

-- now returns the server's clock in milliseconds since 1970.
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

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

-- has tells whether one of the groups has that name.
local function has(list, name)
  for _, g in ipairs(list) do
    if g.name == name then return true end
  end
  return false
end

-- unread returns the id of the first entry after last, or nil. Complexity: O(log N).
-- Not lag and not last-generated-id: both can be wrong for ever (fact 24).
local function unread(stream, last)
  local e = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)
  if #e == 0 then return nil end
  return e[1][1]
end

-- drained tells whether nothing is pending in any group and nothing is unread by any group. A
-- stream without groups is drained when it is empty. The second value changes whenever any group
-- was given an entry.
local function drained(stream, list)
  if #list == 0 then return redis.call('XLEN', stream) == 0, '' end
  local mark = {}
  for _, g in ipairs(list) do
    if g.pending > 0 or unread(stream, g.last) then return false, '' end
    mark[#mark + 1] = g.last
  end
  return true, table.concat(mark, ',')
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

-- trim removes the entries that every group has been given and has acknowledged, and returns how
-- many. The bound is the least, over all groups, of the oldest pending and the first unread entry.
-- Without a group nothing has been read, so nothing is removed. Complexity: O(removed).
local function trim(stream, list)
  if #list == 0 then return 0 end
  local bound
  for _, g in ipairs(list) do
    local b = unread(stream, g.last)
    if g.pending > 0 then
      local oldest = redis.call('XPENDING', stream, g.name)[2]
      if oldest and (not b or before(oldest, b)) then b = oldest end
    end
    if b and (not bound or before(b, bound)) then bound = b end
  end
  if not bound then return redis.call('XTRIM', stream, 'MAXLEN', 0) end
  return redis.call('XTRIM', stream, 'MINID', '=', bound)
end

