-- append.lua: adds events of one job to its log, and updates its state. A number that the log has is not written again.
-- Written for Redis 7.0, Valkey 8 and miniredis.
-- KEYS[1] log: a hash of number → event. Its field `top` is the highest number, and `first` the lowest that may be
--         there. `end` is the number that ended the job.
-- KEYS[2] state: the event with the highest number
-- ARGV[1] TTL of the state in ms   ARGV[2] TTL of the log   ARGV[3] TTL of the log from the end of the job
-- ARGV[4] maximum number of events in the log   ARGV[5] terminal stages, one per line
-- ARGV[6…] per event: number, time of its entry in ms, 1 for a terminal event, event
-- Reply: 1 when the state changed, then an answer per event.
--        0: new. 1: it is in the log, or was. A text: the log has this event with the same number.
--        2: its number is greater than that of the end. 3: the log has expired, so it may be a repetition.
-- Complexity: O(events), and O(N log N) when numbers leave a log with N events and holes: once per N/10 events.
local log, state = KEYS[1], KEYS[2]
local fields = {'top', 'first', 'end'}
for i = 6, #ARGV, 4 do fields[#fields + 1] = ARGV[i] end
local have = redis.call('HMGET', log, unpack(fields))
local known = have[1]
local top, first, last = tonumber(known or 0) or 0, tonumber(have[2] or 1) or 1, tonumber(have[3] or math.huge) or math.huge

-- Without a log, the state has the last number of a log that has expired.
local oldest = 0
if not known then
  -- A quote in a text has a backslash before it. So the first match is the field, which is before the data. A text that
  -- another program wrote and that has no such fields counts as no state, as it does for a reader.
  local stage, number = string.match(redis.call('GET', state) or '', '"stage":"(.-)","seq":(%d+)')
  if number then
    top, first = tonumber(number), tonumber(number) + 1
    if string.find('\n' .. ARGV[5] .. '\n', '\n' .. stage .. '\n', 1, true) then last = top end
  else
    local t = redis.call('TIME')
    oldest = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) - tonumber(ARGV[1])
  end
end

local reply, write, added, text, ended, cut = {0}, {}, {}, nil, false, false
for i = 6, #ARGV, 4 do
  local name, number, json = ARGV[i], tonumber(ARGV[i]), ARGV[i + 3]
  local stored = added[name] or have[3 + (i - 2) / 4]
  local answer = 0
  if number > last then
    answer = 2
  elseif stored then
    answer = stored == json and 1 or stored
  elseif number < first then
    answer = known and 1 or 3
  elseif not known and (tonumber(ARGV[i + 1]) or oldest) < oldest then
    answer = 3
  else
    known, added[name] = true, json
    write[#write + 1] = name
    write[#write + 1] = json
    ended = last == math.huge and ARGV[i + 2] == '1'
    cut = cut or ended and top > number
    if ended then last = number end
    if ended or number > top then top, text = number, json end
  end
  reply[#reply + 1] = answer
end
if #write == 0 then return reply end

local function put(name, number)
  write[#write + 1] = name
  write[#write + 1] = string.format('%.0f', number)
end
local extra = 1
if text then
  reply[1] = 1
else
  text = redis.call('HGET', log, string.format('%.0f', top))
end
put('top', top)
if first > 1 then
  extra = extra + 1
  put('first', first)
end
if last < math.huge then
  extra = extra + 1
  put('end', last)
end
redis.call('HSET', log, unpack(write))
redis.call('SET', state, text, 'PX', ARGV[1])
if last == math.huge then
  redis.call('PEXPIRE', log, ARGV[2])
elseif not have[3] then
  redis.call('PEXPIRE', log, ARGV[3])
end

-- The lowest numbers leave the log when there are too many. Mostly there is no hole among them.
local max, lowest = tonumber(ARGV[4]), first
local over = redis.call('HLEN', log) - extra - max
while not cut and over > 0 and redis.call('HDEL', log, string.format('%.0f', first)) == 1 do
  over, first = over - 1, first + 1
end
if first > lowest then redis.call('HSET', log, 'first', string.format('%.0f', first)) end
if not cut and over <= math.floor(max / 10) then return reply end

-- With holes the numbers are sorted, when the log is a tenth too long. Those above the end leave, too.
local numbers = {}
for _, name in ipairs(redis.call('HKEYS', log)) do
  local number = tonumber(name)
  if number then numbers[#numbers + 1] = number end
end
table.sort(numbers)
while numbers[#numbers] > top do redis.call('HDEL', log, string.format('%.0f', table.remove(numbers))) end
for i = 1, #numbers - max do
  redis.call('HDEL', log, string.format('%.0f', numbers[i]))
  redis.call('HSET', log, 'first', string.format('%.0f', numbers[i] + 1))
end
return reply
