-- KEYS: stream of records, account, what alerts told of it, audit trail, accounts of money by when they may go.
-- ARGV: reset or topup, nanodollars, record, audit entry, how, when it may go, and a token: "TOKENc", "TOKENb" and "TOKENa" in
-- the texts stand for the US dollars that are added to what is spent, and for those spent before and after.
local function usd(nanodollars) return string.format('%.9f', nanodollars / 1e9) end
local spent, amount = tonumber(redis.call('HGET', KEYS[2], 'spent') or 0), tonumber(ARGV[2])
local after = ARGV[1] == 'reset' and amount or spent - amount
local function told(text)
  for letter, value in pairs({c = after - spent, b = spent, a = after}) do
    text = string.gsub(text, '"' .. ARGV[7] .. letter .. '"', usd(value))
  end
  return text
end
redis.call('XADD', KEYS[1], '*', 'v', told(ARGV[3]))
redis.call('HINCRBY', KEYS[2], 'spent', string.format('%.0f', after - spent))
redis.call('ZADD', KEYS[5], 'NX', ARGV[6], KEYS[2])
redis.call('DEL', KEYS[3])
audit(KEYS[4], told(ARGV[4]), ARGV[5])
return string.format('%.0f', after)
