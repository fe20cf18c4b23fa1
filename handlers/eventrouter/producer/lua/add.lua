-- add.lua: adds events to the stream of a shard, each at most once while its marker exists.
-- Written for Redis 7.0, Valkey 8 and miniredis.
-- KEYS[1] stream   KEYS[2…] per event: its marker, and the counter of its job
-- ARGV[1] maximum length of the stream   ARGV[2] TTL of a marker in ms   ARGV[3] TTL of a counter
-- ARGV[4…] per event: its seq, and the other values in the order of `names`. The seq `?` means the next one of the job.
-- Reply: the seqs of the events that are in the stream, a prefix; shorter than given when the stream is full. A last
--        element `!` is an event whose marker is that of another event.
-- XADD comes first: a full server (OOM) refuses it as the first write of a script, and then nothing is written.
-- Complexity: O(events).
local names = {'job_id', 'stage', 'status', 'data', 'timestamp', 'traceparent', 'event_id'}
local stream, reply = KEYS[1], {}
local room = tonumber(ARGV[1]) - redis.call('XLEN', stream)
for i = 2, #KEYS, 2 do
  local marker, counter, at = KEYS[i], KEYS[i + 1], 4 + (i - 2) / 2 * (#names + 1)
  local seq, is
  local given, digest = ARGV[at], redis.sha1hex(table.concat(ARGV, '\n', at + 1, at + 4))
  local marked = redis.call('GET', marker)
  if marked then
    seq, is = string.match(marked, '(.*):(.*)')
    if is ~= digest or given ~= '?' and given ~= seq then seq = '!' end
  else
    if room < 1 then break end
    room, seq = room - 1, given
    local counted = seq == '?'
    if counted then seq = string.format('%.0f', tonumber(redis.call('GET', counter) or 0) + 1) end
    local entry = {'seq', seq}
    for n, name in ipairs(names) do
      entry[#entry + 1] = name
      entry[#entry + 1] = ARGV[at + n]
    end
    redis.call('XADD', stream, '*', unpack(entry))
    redis.call('SET', marker, seq .. ':' .. digest, 'PX', ARGV[2])
    if counted then redis.call('SET', counter, seq, 'PX', ARGV[3]) else redis.call('PEXPIRE', counter, ARGV[3]) end
  end
  reply[#reply + 1] = seq
  if seq == '!' then break end
end
return reply
