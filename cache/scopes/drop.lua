-- ARGV: digests; then for how many milliseconds none of them may be written again (0: that is not recorded), and now.
local there = redis.call('EXISTS', KEYS[1])
local gone, lasting = KEYS[2] .. ':gone', tonumber(ARGV[#ARGV - 1])
for i = 1, #ARGV - 2 do
  strike(ARGV[i])
  if lasting > 0 then redis.call('ZADD', gone, ARGV[#ARGV], ARGV[i]) end
end
if lasting > 0 then
  redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
  redis.call('PEXPIRE', gone, lasting)
end
return there
