-- leave.lua: a user leaves, in any state.
-- ARGV[8] user   ARGV[9] reason: left or kicked
-- Reply: the place
-- Complexity: O(log N)
leave(ARGV[8], ARGV[9])
return answer('OK', standing(ARGV[8]))
