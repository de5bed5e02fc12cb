if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 2, #ARGV, 5 do
  redis.call('HSETNX', KEYS[4], ARGV[i + 3], ARGV[i + 4])
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  audit(KEYS[3], ARGV[i + 2], ARGV[1])
end
redis.call('SET', KEYS[2], redis.call('TIME')[1])
return 1
