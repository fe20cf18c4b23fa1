-- rights.lua: tries each command that the plugins use, on a key that does not exist. The key does not
-- exist afterwards either: what creates it runs only when the user may remove the key, or it expires.
-- KEYS[1] key   ARGV: more commands to try
-- Reply: the commands that the user may not run; empty when the key exists. Then nothing is tried.
-- Complexity: O(1).
local key, denied = KEYS[1], {}
local function try(name, ...)
  local r = redis.pcall(...)
  if type(r) ~= 'table' or not r.err then return true end
  for _, text in ipairs({'NOPERM', "can't run this command", 'no permissions'}) do -- 7.2, Redis 7.0, Valkey 8
    if string.find(r.err, text, 1, true) then
      denied[#denied + 1] = name
      return false
    end
  end
  return true
end
local there = redis.pcall('EXISTS', key)
if there == 1 then return denied end
try('exists', 'EXISTS', key)
try('time', 'TIME')
try('scan', 'SCAN', 0, 'COUNT', 1)
try('xadd', 'XADD', key, 'NOMKSTREAM', '*', 'a', '1')
try('xlen', 'XLEN', key)
try('xtrim', 'XTRIM', key, 'MAXLEN', 0)
try('xrange', 'XRANGE', key, '-', '+', 'COUNT', 1)
try('xrevrange', 'XREVRANGE', key, '+', '-', 'COUNT', 1)
try('xgroup|create', 'XGROUP', 'CREATE', key, 'g', '0')
try('xgroup|delconsumer', 'XGROUP', 'DELCONSUMER', key, 'g', 'c')
try('xgroup|destroy', 'XGROUP', 'DESTROY', key, 'g')
try('xinfo|stream', 'XINFO', 'STREAM', key)
try('xinfo|groups', 'XINFO', 'GROUPS', key)
try('xinfo|consumers', 'XINFO', 'CONSUMERS', key, 'g')
try('xreadgroup', 'XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', 1, 'STREAMS', key, '>')
try('xack', 'XACK', key, 'g', '1-1')
try('xpending', 'XPENDING', key, 'g')
try('xclaim', 'XCLAIM', key, 'g', 'c', 0, '1-1')
try('hget', 'HGET', key, 'a')
try('hmget', 'HMGET', key, 'a')
try('hgetall', 'HGETALL', key)
try('hkeys', 'HKEYS', key)
try('hlen', 'HLEN', key)
try('pexpire', 'PEXPIRE', key, 1)
try('pttl', 'PTTL', key)
if try('hdel', 'HDEL', key, 'a') then
  try('hset', 'HSET', key, 'a', '1')
  try('hsetnx', 'HSETNX', key, 'a', '1')
  redis.pcall('HDEL', key, 'a') -- removes the key with its last field
end
local removable = try('del', 'DEL', key)
local more = {
  zadd = {'XX', '1', 'a'}, zrem = {'a'}, zcard = {}, zrank = {'a'}, zrange = {0, 0}, zrangebyscore = {0, 0}, zscore = {'a'}, zmscore = {'a'},
  sadd = {'a'}, srem = {'a'}, scard = {}, smembers = {}, hexists = {'a'}, hincrby = {'a', 'b'}, mset = {'1'}, unlink = {}, rename = {key},
}
for _, name in ipairs(ARGV) do
  if not more[name] then return redis.error_reply('ERR rights.lua has no arguments for ' .. name) end
  if removable or name ~= 'sadd' then try(name, string.upper(name), key, unpack(more[name])) end
  redis.pcall('DEL', key)
end
try('get', 'GET', key)
try('set', 'SET', key, '1', 'PX', 1)
redis.pcall('DEL', key)
return denied
