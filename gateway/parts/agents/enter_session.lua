local now = redis.call('TIME')
local calls = redis.call('HINCRBY', KEYS[1], 'calls', ARGV[2])
redis.call('HSETNX', KEYS[1], 'first', now[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])
local told = redis.call('HMGET', KEYS[1], 'done', 'nanousd', 'first')
return {calls, tonumber(told[1] or '0'), told[2] or '0', tonumber(now[1]) - tonumber(told[3])}
