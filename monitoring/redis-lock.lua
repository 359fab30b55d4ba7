-- For redis_exporter's -script: every number of INFO lock, by the field's name.
local fields = {}
for name, value in string.gmatch(redis.call('INFO', 'lock'), '(lock_[%w_]+):([^\r\n]*)') do
  if tonumber(value) then
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
end
return fields
