-- read.lua: returns the state of a job, and a page of its log.
-- KEYS[1] log   KEYS[2] state
-- ARGV[1] the page has greater numbers only   ARGV[2] maximum number of events in it
-- Reply: {state or '', top, first, end, event …}, the events in order. top is 0 without a log, end is 0 before the end.
-- Complexity: O(page), and O(N log N) when the log has N events and numbers are missing from the page.
local log, max = KEYS[1], tonumber(ARGV[2])
local have = redis.call('HMGET', log, 'top', 'first', 'end')
local reply = {redis.call('GET', KEYS[2]) or '', have[1] or '0', have[2] or '1', have[3] or '0'}
local from, top = math.max(tonumber(ARGV[1]) + 1, tonumber(reply[3])), tonumber(reply[2])
local page = {}
for number = from, math.min(top, from + max - 1) do page[#page + 1] = string.format('%.0f', number) end
if #page == 0 then return reply end
local events = redis.call('HMGET', log, unpack(page))
local holes = false
for i = 1, #page do holes = holes or not events[i] end
if holes and from + max <= top then
  local numbers = {}
  for _, name in ipairs(redis.call('HKEYS', log)) do
    local number = tonumber(name)
    if number and number >= from then numbers[#numbers + 1] = number end
  end
  table.sort(numbers)
  page = {}
  for i = 1, math.min(max, #numbers) do page[i] = string.format('%.0f', numbers[i]) end
  events = redis.call('HMGET', log, unpack(page))
end
for i = 1, #page do
  if events[i] then reply[#reply + 1] = events[i] end
end
return reply
