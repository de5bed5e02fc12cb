-- Add an amount to a day's sum, and to that of one tenant, if the sum stays under the cap and the tenant's under half of
-- what the others leave of it. KEYS: the hash of sums. ARGV: amount, cap, field, yesterday, the tenant's field or ''.
local amount, most, field, of_tenant = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[5]
local spent = redis.call('HGET', KEYS[1], field)
local sum = tonumber(spent or '0')
if sum + amount > most then return 0 end
if of_tenant ~= '' then
  local own = tonumber(redis.call('HGET', KEYS[1], of_tenant) or '0')
  if own + amount > (most - (sum - own)) / 2 then return 0 end
  redis.call('HINCRBY', KEYS[1], of_tenant, ARGV[1])
end
if not spent then
  for _, old in ipairs(redis.call('HKEYS', KEYS[1])) do
    if old < ARGV[4] then redis.call('HDEL', KEYS[1], old) end
  end
end
redis.call('HINCRBY', KEYS[1], field, ARGV[1])
return 1
