-- create.lua: creates the room of an event without configuration. It is open, and its capacity is unknown.
-- KEYS[1] room   KEYS[2] seats that were sold in earlier rooms of the event
-- Reply: 1, or 0 when there is a room
-- Complexity: O(1)
if redis.call('HEXISTS', KEYS[1], 'state') == 1 then return 0 end
new(KEYS[1], KEYS[2])
return 1
