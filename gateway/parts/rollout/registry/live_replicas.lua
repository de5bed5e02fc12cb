local now, alive = tonumber(redis.call('TIME')[1]), {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], now - tonumber(ARGV[1]), '+inf')) do
  alive[#alive + 1] = redis.call('HGET', KEYS[1], name) or nil
end
return alive
