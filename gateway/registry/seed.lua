if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 1, #ARGV, 5 do
  redis.call('HSETNX', KEYS[4], ARGV[i + 3], ARGV[i + 4])
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('XADD', KEYS[3], '*', 'v', ARGV[i + 2])
end
redis.call('SET', KEYS[2], redis.call('TIME')[1])
return 1
