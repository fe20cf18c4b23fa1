-- tidy.lua: removes the entries that all groups that count have acknowledged. These are the groups
-- that read the stream here, the required groups, and each foreign group within its grace.
-- KEYS[1] stream   KEYS[2] meta
-- ARGV[1] groups that read it here, one per line   ARGV[2] grace of foreign groups in ms
-- ARGV[3] those and the required groups, one per line
-- ARGV[4] keep in ms: entries with a younger id stay; 0: none do
-- Reply: {trimmed, entries left, delaying}; delaying has {name, milliseconds, ignored} per foreign
--        group that delays trimming. Nothing is trimmed while a group that reads the stream is
--        missing. It is created again at 0, and receives all that it had not acknowledged.
-- Trimming comes first: on a full server it frees memory, and it lets the writes after it pass.
-- Complexity: that of look and O(entries trimmed).
local stream, meta = KEYS[1], KEYS[2]
if redis.call('EXISTS', stream) == 0 then return {0, 0, {}} end
local list, own = groups(stream), nil
for name in string.gmatch(ARGV[1], '[^\n]+') do
  if not has(list, name) then return {0, redis.call('XLEN', stream), {}} end
  own = name
end
local v, keep = look(stream, meta, own, tonumber(ARGV[2]), ARGV[3]), tonumber(ARGV[4])
if keep > 0 then v.bound = earlier(v.bound, string.format('%.0f-0', math.max(0, now() - keep))) end
local trimmed = trim(stream, v)
remember(meta, v)
return {trimmed, redis.call('XLEN', stream), v.delaying}
