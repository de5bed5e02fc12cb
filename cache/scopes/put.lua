if ARGV[5] ~= '' and redis.call('EXISTS', prefix .. ARGV[5]) == 0 then return 0 end
local lasting = ARGV[9] == '1'
for _, digest in ipairs({ARGV[1], ARGV[5]}) do
  local deleted_at = digest ~= '' and redis.call('ZSCORE', KEYS[2] .. ':gone', digest)
  if deleted_at and (lasting or tonumber(ARGV[4]) <= tonumber(deleted_at)) then return 0 end
end
local ttl, size = tonumber(ARGV[3]), #ARGV[2]
local record = redis.call('HGET', KEYS[2], ARGV[1])
local before = record and tonumber(string.match(record, '^%d+')) or 0
if lasting then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ttl) end
redis.call('HSET', KEYS[2], ARGV[1], size .. ' ' .. ARGV[5])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1])
local bytes = redis.call('HINCRBY', KEYS[2], '', size - before)
for _ = 1, 100 do
  local oldest = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  local full = redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[6]) or bytes > tonumber(ARGV[7])
  if oldest[1] == ARGV[1] or not (full or tonumber(oldest[2]) <= tonumber(ARGV[8])) then break end
  bytes = strike(oldest[1])
end
for i = 2, 3 do
  if not lasting and redis.call('PTTL', KEYS[i]) < ttl then redis.call('PEXPIRE', KEYS[i], ttl) end
end
if KEYS[4] then redis.call('DEL', KEYS[4]) end
return bytes
