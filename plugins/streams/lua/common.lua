-- common.lua: functions the other scripts of this folder share. It is put in front of each of
-- them, after redis's groups.lua; it touches nothing by itself.

-- ownership returns an error reply when a stream belongs to another deployment, and whether it has no owner yet.
-- own is this deployment's id; a deployment without an id ('') neither owns streams nor respects owners.
local function ownership(meta, own)
  if own == '' then return nil, false end
  local owner = redis.call('HGET', meta, 'owner')
  if owner and owner ~= own then return redis.error_reply('FOREIGN ' .. owner), false end
  return nil, not owner
end
