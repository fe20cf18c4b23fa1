-- capped.lua: adds an entry to a stream without a group, and removes the oldest ones beyond its limits.
-- KEYS[1] stream
-- ARGV[1] most entries, about  ARGV[2] most bytes of all entries, about  ARGV[3…] fields and values
-- Each entry gets the field "written": the bytes that were added up to and with it. So the bytes of the
-- stream are known from its newest and oldest entry, also after entries were deleted at its ends.
-- Reply: the id of the entry.
-- Complexity: O(entries removed), at most 100 besides those beyond ARGV[1].
local stream, most = KEYS[1], tonumber(ARGV[2])
local function written(e)
  local fields = e[2]
  for i = #fields - 1, 1, -2 do
    if fields[i] == 'written' then return tonumber(fields[i + 1]) or 0 end
  end
  return 0 -- of another client
end

local total, args = 0, {}
for _, e in ipairs(redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 10)) do
  total = math.max(total, written(e))
  if total > 0 then break end
end
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
    -- What follows an entry has total - written(e) bytes: while that fills the stream, the entry goes.
    enough = e[1] == id or total - written(e) < most
    if enough then break end
    gone[#gone + 1] = e[1]
  end
  if #gone > 0 then redis.call('XDEL', stream, unpack(gone)) end
  if enough or #gone == 0 then break end
end
return id
