-- KEYS: records, owners. ARGV: digest, what stands in for a key that is not there, so that both are answered alike.
-- Returns whether it is there, the record, its team and its tenant.
local found = redis.call('HGET', KEYS[1], ARGV[1])
local record = found or ARGV[2]
local key = cjson.decode(record)
local team = redis.call('HGET', KEYS[2], 'team:' .. (key.team or ''))
local own = redis.call('HGET', KEYS[2], 'team:' .. key.tenant .. '/' .. (key.team or ''))
return {found and 1 or 0, record, own or team or '', redis.call('HGET', KEYS[2], 'tenant:' .. key.tenant) or ''}
