local there = redis.call('EXISTS', KEYS[1])
for i = 1, #ARGV do strike(ARGV[i]) end
return there
