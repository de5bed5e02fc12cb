-- KEYS: stream of records, account, what alerts told of it, audit trail, accounts of money by when they may go.
-- ARGV: what is thought to be spent, what is added to it, record, audit entry, how, when it may go.
local spent = tonumber(redis.call('HGET', KEYS[2], 'spent') or 0)
if spent ~= tonumber(ARGV[1]) then return 0 end
redis.call('XADD', KEYS[1], '*', 'v', ARGV[3])
redis.call('HINCRBY', KEYS[2], 'spent', ARGV[2])
redis.call('ZADD', KEYS[5], 'NX', ARGV[6], KEYS[2])
redis.call('DEL', KEYS[3])
audit(KEYS[4], ARGV[4], ARGV[5])
return 1
