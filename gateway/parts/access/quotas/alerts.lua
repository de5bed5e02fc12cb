-- KEYS: what was told of the account, alerts by when they are due, their texts.
if ARGV[1] == 'raise' then -- limit, share in thousandths, lifetime in seconds or 0, id, now, text
  local limit, share = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%d+)$')
  if limit == ARGV[2] and tonumber(share) >= tonumber(ARGV[3]) then return 0 end
  redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[3])
  if tonumber(ARGV[4]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[4]) end
  if ARGV[7] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[5], ARGV[7])
    redis.call('ZADD', KEYS[2], ARGV[6], ARGV[5])
  end
  return 1
end
-- take: now, and until when nobody else may take it
local id = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[2], 'LIMIT', 0, 1)[1]
if not id then return {} end
redis.call('ZADD', KEYS[2], ARGV[3], id)
return {id, redis.call('HGET', KEYS[3], id) or '', redis.call('HINCRBY', KEYS[3], 'tries ' .. id, 1)}
