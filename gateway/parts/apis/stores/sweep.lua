local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[2], 'LIMIT', 0, 100)
for i = 1, #ended do strike(ended[i]) end
if redis.call('ZCARD', KEYS[3]) == 0 then redis.call('DEL', KEYS[2]) end
return #ended
