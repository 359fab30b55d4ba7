-- For redis_exporter's -script: every number of INFO lock, by the field's name. A histogram is one field
-- with many numbers, name:le_1=5,le_2=7,...: they become name_le_1, name_le_2 and so on.
local fields = {}
local function add(name, value)
  if tonumber(value) then
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
end
for name, value in string.gmatch(redis.call('INFO', 'lock'), '(lock_[%w_]+):([^\r\n]*)') do
  add(name, value)
  for part, number in string.gmatch(value, '([%w_]+)=([^,]*)') do
    add(name .. '_' .. part, number)
  end
end
return fields
