-- KEYS: records, ids, order, owners, revision, changes, filter, audit, imported. ARGV: how it came, then for each record
-- key | owner, its name, the revision expected, the record ('' to remove it), its id, its team, the audit entry.
-- Returns the new revision; where another change came first the number of the record, and what it is now.
for i = 2, #ARGV, 7 do
  local old = redis.call('HGET', ARGV[i] == 'key' and KEYS[1] or KEYS[4], ARGV[i + 1])
  local revision = old and cjson.decode(old).revision or 0
  if revision ~= tonumber(ARGV[i + 2]) then return {(i - 2) / 7, old or ''} end
end
if redis.call('EXISTS', KEYS[5]) == 0 then redis.call('SET', KEYS[5], redis.call('TIME')[1]) end
local revision
for i = 2, #ARGV, 7 do
  local kind, name, record, id, team = ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local hash = kind == 'key' and KEYS[1] or KEYS[4]
  revision = redis.call('INCR', KEYS[5])
  if kind == 'key' then
    local old = redis.call('HGET', hash, name)
    if old then
      redis.call('ZREM', KEYS[3] .. ':' .. (cjson.decode(old).team or ''), id)
    else
      local now = redis.call('HGET', KEYS[2], id)
      if not now or cjson.decode(record).replaces == now then redis.call('HSET', KEYS[2], id, name) end
      redis.call('ZADD', KEYS[3], 'NX', revision, id)
      if cjson.decode(record).imported then redis.call('SET', KEYS[9], '1') end
      for place = 1, 19, 6 do redis.call('SETBIT', KEYS[7], tonumber(string.sub(name, place, place + 5), 16), 1) end
    end
    local place = redis.call('ZSCORE', KEYS[3], id)
    if team ~= '' then redis.call('ZADD', KEYS[3] .. ':' .. team, place, id) end
  end
  if record == '' then redis.call('HDEL', hash, name) else redis.call('HSET', hash, name, record) end
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', 100000, revision .. '-0', kind, name)
  if ARGV[i + 6] ~= '' then audit(KEYS[8], ARGV[i + 6], ARGV[1]) end
end
return revision
