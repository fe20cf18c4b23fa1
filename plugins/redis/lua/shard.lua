-- shard.lua: renews, takes or releases the lease of a shard, and records that an instance takes part.
-- KEYS[1] meta of the stream   KEYS[2] stream
-- ARGV[1] instance, a token per opened domain   ARGV[2] length of the lease in ms; 0 releases
-- ARGV[3] group   ARGV[4] shards of the domain   ARGV[5] shards that the instance has
-- ARGV[6] those, and those that it may get now
-- ARGV[7] epoch of its lease of this shard; 0: it does not read the shard; -1: its lease has expired.
--   Only an instance that does not read the shard takes the lease.
-- Reply: {mine, epoch, surplus}. mine is 1 when the instance has the lease, and 2 when the meta was deleted and is
--   written again. surplus is 1 when it should release one shard.
-- Fields: owner, until and epoch of the lease. `take:<instance>` is "<until> <shards it has>". `unknown` is
-- when an instance first saw a group with consumers and no epoch: the meta was deleted, and its owner may go on reading.
-- Each instance may have its even share: the floor, or one more while no other has less than the floor.
-- HDEL comes first: a full server (OOM) refuses HSET as the first write of a script, and only then.
-- Complexity: O(instances).
local meta, me, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
local shards, has, ahead, epoch = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local t = redis.call('TIME')
local at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local function text(n) return string.format('%.0f', n) end

redis.call('HDEL', meta, '')
local flat, f, most, least, live = redis.call('HGETALL', meta), {}, '', shards, 1
for i = 1, #flat, 2 do
  local name, value = flat[i], flat[i + 1]
  f[name] = value
  local other = string.match(name, '^take:(.+)$')
  if other and other ~= me then
    local ends, n = string.match(value, '^(%d+) (%d+)$')
    ends, n = tonumber(ends) or 0, tonumber(n) or 0
    if ends > at and ends <= at + lease then
      live = live + 1
      if n < least then least = n end
      local rank = string.format('%08d', n) .. other
      if rank > most then most = rank end
    elseif ends <= at then
      redis.call('HDEL', meta, name)
    end
  end
end

if lease == 0 then
  redis.call('HDEL', meta, 'take:' .. me)
  if f.owner == me then redis.call('HDEL', meta, 'owner', 'until') end
  return {0, 0, 0}
end

local known, mine, deleted = tonumber(f.epoch) or 0, f.owner == me, false
if not f.owner and epoch > 0 and (known == 0 or known == epoch) then
  known, mine, deleted = epoch, true, true
end
local floor, ceil = math.floor(shards / live), math.ceil(shards / live)
if not mine then
  local free = true
  if f.owner then
    local ends = tonumber(f['until']) or 0
    if ends > at + lease then -- the clock of the server was set back
      ends = at + lease
      redis.call('HSET', meta, 'until', text(ends))
    end
    free = ends <= at
  elseif known == 0 then
    local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[2], ARGV[3])
    if not consumers.err and #consumers > 0 then
      local seen = tonumber(f.unknown)
      if not seen or seen > at then
        seen = at
        redis.call('HSET', meta, 'unknown', text(at))
      end
      free = at - seen >= lease
    end
  end
  if free and epoch == 0 and (ahead < floor or ahead < ceil and least >= floor) then
    known, mine, has = known + 1, true, has + 1
  end
end
redis.call('HSET', meta, 'take:' .. me, text(at + lease) .. ' ' .. has)
if not mine then return {0, known, 0} end
redis.call('HSET', meta, 'owner', me, 'until', text(at + lease), 'epoch', text(known))
redis.call('HDEL', meta, 'unknown')
local surplus = has > ceil or has > floor and least < floor and string.format('%08d', has) .. me > most
return {deleted and 2 or 1, known, surplus and 1 or 0}
