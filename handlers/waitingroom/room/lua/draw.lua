-- draw.lua: gives users of the frozen pre-queue their places, in parts. After the last part the room opens.
-- ARGV[8] digest of all users   ARGV[9] cut of the freeze   ARGV[10] places before this part   ARGV[11] number of all places
-- ARGV[12] hashes of the part's users, 32 bytes each   ARGV[13…] at most 250 users in the order of their places
-- Reply: how many places are drawn. A part that does not continue them changes nothing. Code CONFLICT: no draw is going on, or
--        it is of another freeze, or has another digest.
-- Complexity: O(users · log N)
local digest, start, places = ARGV[8], tonumber(ARGV[10]), tonumber(ARGV[11])
if room.state ~= 'drawing' or room.cut ~= ARGV[9] or (room.digest or digest) ~= digest then return answer('CONFLICT', room.drawn or '0') end
local drawn = tonumber(room.drawn)
if start ~= drawn then return answer('OK', num(drawn)) end

local users, scores, texts = {unpack(ARGV, 13)}, {}, {}
local records = #users > 0 and redis.call('HMGET', RECORD, unpack(users)) or {}
for i, user in ipairs(users) do
  local index, record = cut + start + i, records[i]
  if not record then -- the user left, or is absent: then the drawn place is kept
    local m = memory(user)
    if m.absent > m.void and m.absent == frozen(user) then
      m.absent = index
      note(user, m)
    end
  elseif tonumber(string.match(record, '"idx":(%d+)') or 0) <= cut then -- else the user left and entered again
    scores[#scores + 1], scores[#scores + 2] = num(index), member(user)
    texts[#texts + 1], texts[#texts + 2] = user, (string.gsub(record, '"idx":%d+', '"idx":' .. num(index), 1))
  end
end
redis.call('HSET', ORDER, num(start), ARGV[12])
if #scores > 0 then
  redis.call('ZADD', WAITING, unpack(scores))
  redis.call('HSET', RECORD, unpack(texts))
end
drawn = drawn + #users
redis.call('HSET', ROOM, 'digest', digest, 'drawn', num(drawn))
if drawn == places then
  redis.call('HSET', ROOM, 'state', 'open', 'epoch', num(clock), 'drawn_at', num(clock))
  redis.call('HDEL', ROOM, 'frozen')
  redis.call('UNLINK', FROZEN)
  audit('draw', 'schedule', 'all users have their places', 'users=' .. num(drawn) .. ' digest=' .. digest)
end
return answer('OK', num(drawn))
