-- leave.lua: a user leaves, or is removed by an operator. A lease that a shop has verified is ended by the operator alone,
--            because the user may be paying for it.
-- ARGV[8] user   ARGV[9] reason: left or kicked
-- Reply: the place; how is lease if a lease has ended. Code VERIFIED: the user can not end the lease, and nothing has changed.
-- Complexity: O(log N)
local l = lease(ARGV[8])
if l and verified(l) and ARGV[9] ~= 'kicked' then return answer('VERIFIED', standing(ARGV[8])) end
leave(ARGV[8], ARGV[9])
return answer('OK', standing(ARGV[8], l and 'lease'))
