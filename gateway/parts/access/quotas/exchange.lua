-- Do what authority.py does, for all accounts of one worker in one step. It is told there; both are held equal by a test.
-- KEYS: the sorted set of accounts, when the latest exchange was, then for each account its hash and that of its slots.
-- ARGV: worker, number, milliseconds (empty: the store's clock), then 15 words for each account:
-- unit, limit, kept, held, expected, need, need_expected, least, least_expected, comfort, used, reported (those of LeaseRequest),
-- lifetime of the lease, lifetime of the keys, and when the account may go (0: never), in milliseconds.
local SLOT, SLOTS, PRESSED, TURN, GAP, BACK, WORDS = 250, 240, 1000, 500, 2500, 4, 15
local NAMES, NAMES_KEPT = 100000, 90 * 86400000
local worker, number = 'w:' .. ARGV[1], tonumber(ARGV[2])
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local heard_at, silent = string.match(redis.call('GET', KEYS[2]) or '0 0', '(%S+) (%S+)')
heard_at, silent = tonumber(heard_at), tonumber(silent)
if heard_at > 0 and now - heard_at > GAP then silent = silent + now - heard_at end
redis.call('SET', KEYS[2], string.format('%.0f %.0f', now, silent))

local function whole(value) return string.format('%.0f', value) end
local function line(figures) return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', unpack(figures)) end

local function used(key, added, life)
  local slot = math.floor(now / SLOT)
  local slots, sum, last, newest = {}, 0, slot, nil
  local flat = redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    local index = tonumber(flat[i])
    slots[index] = tonumber(flat[i + 1])
    last = math.max(last, index)
  end
  if last > slot + BACK then
    local total = 0
    for _, amount in pairs(slots) do total = total + amount end
    slots, last = {[slot] = total}, slot
    redis.call('DEL', key)
    redis.call('HSET', key, whole(slot), whole(total))
  end
  for index, amount in pairs(slots) do
    if index < slot - SLOTS then
      redis.call('HDEL', key, whole(index))
      slots[index] = nil
    else
      sum, newest = sum + amount, math.max(newest or index, index)
    end
  end
  if added > 0 then
    sum, slots[last], newest = sum + added, (slots[last] or 0) + added, last
    redis.call('HSET', key, whole(last), whole(slots[last]))
    redis.call('PEXPIRE', key, life)
  end
  return sum, slots, newest and (newest + SLOTS + 1) * SLOT - now or 0
end

local function until_free(slots, missing)
  local indices = {}
  for index in pairs(slots) do indices[#indices + 1] = index end
  table.sort(indices)
  for _, index in ipairs(indices) do
    missing = missing - slots[index]
    if missing <= 0 then return (index + SLOTS + 1) * SLOT - now end
  end
  return 0
end

local replies = {}
for i = 1, (#ARGV - 3) / WORDS do
  local key, slots_key, at = KEYS[2 * i + 1], KEYS[2 * i + 2], 3 + (i - 1) * WORDS
  local unit = ARGV[at + 1]
  local word = {}
  for j = 2, WORDS do word[j] = tonumber(ARGV[at + j]) end
  local limit, kept, held, expected, need, need_expected = word[2], word[3], word[4], word[5], word[6], word[7]
  local least, least_expected, comfort = word[8], word[9], word[10]
  local total_used, reported, life, key_life, may_go = word[11], word[12], word[13], word[14], word[15]
  local spent, pressed_until, mine, waiting = 0, 0, nil, {}
  local others, others_held, others_expected = 0, 0, 0
  local flat = redis.call('HGETALL', key)
  for j = 1, #flat, 2 do
    local name, value = flat[j], flat[j + 1]
    if name == 'spent' then
      spent = tonumber(value)
    elseif name == 'pressed' then
      pressed_until = tonumber(value)
    elseif name ~= 'limit' then
      local lease = {}
      for figure in string.gmatch(value, '%S+') do lease[#lease + 1] = tonumber(figure) end
      for at_least = 7, 9 do lease[at_least] = lease[at_least] or 0 end
      local till = math.min(lease[4] + silent - lease[9], now + life)
      if till ~= lease[4] or silent ~= lease[9] then
        lease[4], lease[9] = till, silent
        redis.call('HSET', key, name, line(lease))
      end
      if lease[4] <= now then
        redis.call('HDEL', key, name)
      elseif name == worker then
        mine = lease
      else
        others, others_held = others + lease[1], others_held + lease[2]
        others_expected = others_expected + lease[3]
        if lease[7] > 0 and lease[4] > now + life - TURN then waiting[#waiting + 1] = lease end
      end
    end
  end
  local late = mine and number <= mine[5]
  local money, minute, slots, reset = unit == 'usd', unit == 'requests' or unit == 'tokens', nil, 0
  if minute then
    local added = late and 0 or total_used - (mine and mine[6] or reported)
    spent, slots, reset = used(slots_key, math.max(added, 0), key_life)
  end
  local pressed = now < pressed_until and pressed_until <= now + PRESSED
  local amount, denied, retry = 0, 0, 0
  if late then
    amount = mine[1]
  else
    amount = mine and math.max(kept, held) or held
    local one_lease = money and math.floor(limit / 10) or 0
    local free = limit - spent - others - amount
    local since = need > 0 and mine and mine[7] or 0
    if need > 0 then
      local fits = not money or (spent < limit and (others_held + held == 0
        or spent + others_expected + expected < limit))
      local most = free
      if money then
        most = free + math.max(one_lease, least)
        for _, lease in ipairs(waiting) do
          if lease[7] < (since > 0 and since or now + 1) then most = most - lease[8] end
        end
      end
      local extra = fits and math.min(need, most) or 0
      if extra < math.max(least, 1) then
        denied, pressed = 1, true
        since = money and (since > 0 and since or now) or 0
        redis.call('HSET', key, 'pressed', whole(now + PRESSED))
        if minute then retry = until_free(slots, least - free) end
      else
        amount, free, since = amount + extra, free - extra, 0
        held, expected = held + extra, expected + (extra == need and need_expected or least_expected)
      end
    end
    if comfort > 0 and not pressed and free > 0 then amount = amount + math.min(comfort, math.floor(free / 10)) end
    redis.call('HSET', key, worker, line({amount, held, expected, now + life, number, total_used, since, since > 0 and least or 0, silent}))
    if not money then
      redis.call('PEXPIRE', key, key_life)
    else
      redis.call('HSET', key, 'limit', whole(limit))
      redis.call('ZADD', KEYS[1], may_go > 0 and may_go or '+inf', key)
      if may_go > now and (string.find(key, ':quota:user:', 1, true) or string.find(key, ':quota:session:', 1, true)) then
        redis.call('PEXPIRE', key, whole(may_go - now))
        -- Of the names that clients of one key, team or tenant choose, those that were used longest ago go first.
        local names = string.match(key, '^([^/]*):[^:/]*/') .. ':names'
        redis.call('ZADD', names, whole(now), key)
        redis.call('PEXPIRE', names, NAMES_KEPT)
        for _ = NAMES + 1, redis.call('ZCARD', names) do
          local oldest = redis.call('ZPOPMIN', names)[1]
          redis.call('DEL', oldest)
          redis.call('ZREM', KEYS[1], oldest)
        end
      end
    end
  end
  for _, figure in ipairs({amount, spent, others, others_held, others_expected, pressed and 1 or 0, denied, retry, reset}) do
    replies[#replies + 1] = figure
  end
end
-- Counters of money have no expiry, so that a full store does not evict them; but for those of end users and sessions,
-- whose names clients choose: else whoever makes up names fills the store for everybody. The key's own budget holds.
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(now), 'LIMIT', 0, 8)) do
  redis.call('DEL', key)
  redis.call('ZREM', KEYS[1], key)
end
return replies
