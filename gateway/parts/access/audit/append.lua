-- Beside a stream, `<stream>:head` holds the id and the hash of its newest entry and how many there were: what was removed
-- is missed by it, and the next entry names the one that was there. A version that does not know it may append too.
local function audit(stream, entry, how)
  local function place(id)
    local at, number = string.match(id or '0-0', '(%d+)%-(%d+)')
    return tonumber(at), tonumber(number)
  end
  local head = redis.call('HMGET', stream .. ':head', 'id', 'chain', 'count')
  local last, before = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1], head[2] or ''
  local last_at, last_number = place(last and last[1])
  local head_at, head_number = place(head[1] or nil)
  if last and (last_at > head_at or last_at == head_at and last_number >= head_number) then
    before = redis.sha1hex(last[1] .. '\n' .. table.concat(last[2], '\n'))
  end
  local fields = {'v', entry, 'how', how, 'before', before}
  local count = math.max(tonumber(head[3] or 0), redis.call('XLEN', stream)) + 1
  local id = redis.call('XADD', stream, '*', unpack(fields))
  local chain = redis.sha1hex(id .. '\n' .. table.concat(fields, '\n'))
  redis.call('HSET', stream .. ':head', 'id', id, 'chain', chain, 'count', count)
end
