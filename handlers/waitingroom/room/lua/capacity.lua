-- capacity.lua: stores the number of seats while it is unknown.
-- ARGV[8] seats
-- Reply: the code alone
-- Complexity: O(1)
if not room.capacity then redis.call('HSET', ROOM, 'capacity', ARGV[8]) end
return answer('OK')
