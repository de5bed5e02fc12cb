local prefix = string.sub(KEYS[1], 1, -(#ARGV[1] + 1))
local function strike(digest)
  local record = redis.call('HGET', KEYS[2], digest)
  redis.call('DEL', prefix .. digest)
  redis.call('ZREM', KEYS[3], digest)
  if not record then return 0 end
  redis.call('HDEL', KEYS[2], digest)
  return redis.call('HINCRBY', KEYS[2], '', -tonumber(string.match(record, '^%d+')))
end
