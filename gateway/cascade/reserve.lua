local spent = redis.call('HGET', KEYS[1], ARGV[3])
if tonumber(spent or '0') + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return 0 end
if not spent then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field < ARGV[4] then redis.call('HDEL', KEYS[1], field) end
  end
end
redis.call('HINCRBY', KEYS[1], ARGV[3], ARGV[1])
return 1
