-- capped.lua: adds an entry to a stream without a group, and removes the oldest ones beyond its limits.
-- KEYS[1] stream
-- ARGV[1] most entries, about  ARGV[2] most bytes of all entries, about  ARGV[3…] fields and values
-- Each entry gets the field "written": the bytes that were added up to and with it. So the bytes of the
-- stream are known from its newest and oldest entry, also after entries were deleted at its ends. Other
-- clients do not write the field: the bytes of their newest entries are counted by the next call.
-- Reply: the id of the entry.
-- Complexity: O(entries removed), at most 100 besides those beyond ARGV[1], and O(newest entries of other
-- clients), at most ARGV[1].
local stream, limit, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
-- written returns 0 for an entry of another client. That may have a field of the same name with any text: nan or inf
-- would be in every later total, and remove all entries but the newest.
local function written(e)
  local fields = e[2]
  for i = #fields - 1, 1, -2 do
    if fields[i] == 'written' then
      local digits = string.match(fields[i + 1], '^%d+$')
      return digits and #digits <= 15 and tonumber(digits) or 0
    end
  end
  return 0
end

local total, args, found, before, seen, page = 0, {}, false, '+', 0, {}
repeat
  page = redis.call('XREVRANGE', stream, before, '-', 'COUNT', 10)
  if #page > 0 then before = '(' .. page[#page][1] end
  seen = seen + #page
  for _, e in ipairs(page) do
    found = written(e) > 0
    total = total + written(e)
    if found then break end
    for _, text in ipairs(e[2]) do total = total + #text end
  end
until found or #page < 10 or seen >= limit
for i = 3, #ARGV do
  args[#args + 1] = ARGV[i]
  total = total + #ARGV[i]
end
args[#args + 1] = 'written'
args[#args + 1] = string.format('%.0f', total)
local id = redis.call('XADD', stream, 'MAXLEN', '~', ARGV[1], '*', unpack(args))

for _ = 1, 10 do
  local gone, enough = {}, false
  for _, e in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', 10)) do
    -- What follows an entry has total - written(e) bytes: while that fills the stream, the entry goes. So
    -- does one from before a new count, which began after ARGV[1] entries of other clients.
    enough = e[1] == id or total - written(e) < most and written(e) <= total
    if enough then break end
    gone[#gone + 1] = e[1]
  end
  if #gone > 0 then redis.call('XDEL', stream, unpack(gone)) end
  if enough or #gone == 0 then break end
end
return id
