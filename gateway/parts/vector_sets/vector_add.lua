redis.call('VADD', KEYS[1], 'FP32', ARGV[1], ARGV[2], ARGV[6], 'EF', ARGV[7])
local now, expires = tonumber(ARGV[3]), tonumber(ARGV[3]) + tonumber(ARGV[4])
redis.call('ZADD', KEYS[2], expires, ARGV[2])
local gone = redis.call('ZRANGE', KEYS[2], '-inf', now, 'BYSCORE', 'LIMIT', 0, 10)
for _, element in ipairs(gone) do redis.call('ZREM', KEYS[2], element) end
for _ = #gone + 1, math.min(10, redis.call('VCARD', KEYS[1]) - tonumber(ARGV[5])) do
  local first = redis.call('ZPOPMIN', KEYS[2])
  gone[#gone + 1] = first[1] or redis.call('VRANDMEMBER', KEYS[1])
end
for _, element in ipairs(gone) do redis.call('VREM', KEYS[1], element) end
local last = redis.call('ZRANGE', KEYS[2], 0, 0, 'REV', 'WITHSCORES')[2]
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, math.max(1, tonumber(last or expires) - now)) end
return #gone
