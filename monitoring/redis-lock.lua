-- For redis_exporter's -script: every number of INFO lock, by the field's name. A histogram is one field
-- with many numbers, name:le_1=5,le_2=7,...: they become name_le_1, name_le_2 and so on.
local fields = {}
local function add(name, value)
  if tonumber(value) then
    fields[#fields + 1] = name
    fields[#fields + 1] = tostring(value)
  end
end
for name, value in string.gmatch(redis.call('INFO', 'lock'), '(lock_[%w_]+):([^\r\n]*)') do
  add(name, value)
  for part, number in string.gmatch(value, '([%w_]+)=([^,]*)') do
    add(name .. '_' .. part, number)
  end
end
-- The hottest locks by their ranks: lock_hot_1_waited_ms and so on, 0 without such a lock. Their names aren't
-- exported, because each name would be a series of its own for ever.
local RANKS = 5
local COUNTS = {'waited-ms', 'longest-wait-ms', 'waiters', 'waits', 'refused', 'grants', 'held-ms'}
local is_known, may = pcall(redis.acl_check_cmd, 'LOCK.HOT')
if is_known and may then
  local hottest = redis.call('LOCK.HOT', 'COUNT', RANKS)
  for rank = 1, RANKS do
    local counts = {}
    local lock = hottest[rank] or {}
    for i = 1, #lock, 2 do
      counts[lock[i]] = lock[i + 1]
    end
    for _, count in ipairs(COUNTS) do
      add('lock_hot_' .. rank .. '_' .. string.gsub(count, '-', '_'), counts[count] or 0)
    end
  end
end
return fields
