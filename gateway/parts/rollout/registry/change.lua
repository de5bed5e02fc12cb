local old = redis.call('HGET', KEYS[1], ARGV[1])
local revision = 0
if old then revision = cjson.decode(old).revision end
if revision ~= tonumber(ARGV[2]) then return old or '' end
if ARGV[5] ~= '' then redis.call('HSETNX', KEYS[4], ARGV[5], ARGV[6]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
audit(KEYS[3], ARGV[4], ARGV[7])
redis.call('INCR', KEYS[2])
return 1
