-- leave.lua: a user leaves, in any state.
-- ARGV[8] user   ARGV[9] reason: left or kicked
-- Reply: the place; how is lease if a lease has ended
-- Complexity: O(log N)
local l = lease(ARGV[8])
leave(ARGV[8], ARGV[9])
return answer('OK', standing(ARGV[8], l and 'lease'))
