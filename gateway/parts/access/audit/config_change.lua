local old = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if old ~= ARGV[2] then return old end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
audit(KEYS[2], ARGV[4], 'config')
return 1
