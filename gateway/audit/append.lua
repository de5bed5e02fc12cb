local function audit(stream, entry, how)
  local last, before = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1], ''
  if last then before = redis.sha1hex(last[1] .. '\n' .. table.concat(last[2], '\n')) end
  redis.call('XADD', stream, '*', 'v', entry, 'how', how, 'before', before)
end
