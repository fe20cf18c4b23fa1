-- open.lua: in front of control.lua, which creates the room that an operator opens in the same script, because one that is
-- open before its limits and times are set would begin a sale. control.lua removes it again if it can't be opened like this.
local created = ARGV[8] == 'open' and redis.call('HEXISTS', KEYS[13], 'state') == 0
for i = 14, #ARGV, 2 do
  if ARGV[i] == 'preview' then created = false end
end
if created then new(KEYS[13], KEYS[21]) end
