-- status.lua: describes users. It writes nothing.
-- ARGV[8…] users
-- Reply: a place per user
-- Complexity: O(users · log N)
local reply = answer('OK')
for i = 8, #ARGV do reply[#reply + 1] = standing(ARGV[i], '', true) end
return reply
