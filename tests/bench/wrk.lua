-- wrk's side of the bench. Settings come as BENCH_* variables; the result goes out as one line of JSON.
--   BENCH_PREFIX, BENCH_PROMPT, BENCH_SUFFIX   the body, in the order in which they make it
--   BENCH_UNIQUE=1    in place of the prompt one never asked before, made of BENCH_WORDS, in every request
--   BENCH_THINK_MS    mean pause of a connection between a reply and its next request (half load)
local words_file, unique = os.getenv("BENCH_WORDS"), os.getenv("BENCH_UNIQUE") == "1"
local think = tonumber(os.getenv("BENCH_THINK_MS") or "0")
local prefix, suffix = os.getenv("BENCH_PREFIX"), os.getenv("BENCH_SUFFIX")
local fixed = os.getenv("BENCH_PROMPT")
local words, head = {}, nil

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Host"] = "127.0.0.1"
wrk.body = prefix .. fixed .. suffix

function init(args)
  for line in io.lines(words_file) do words[#words + 1] = line end
  math.randomseed(tonumber(os.getenv("BENCH_SEED")))
  head = wrk.format(nil, "/v1/chat/completions")
end

local function prompt()
  local picked = {}
  for i = 1, 10 do picked[i] = words[math.random(#words)] end
  return table.concat(picked, " ") .. " " .. math.random(1000000000)
end

function request()
  if not unique then return head end
  return wrk.format(nil, "/v1/chat/completions", nil, prefix .. prompt() .. suffix)
end

if think > 0 then
  function delay() return math.floor(-think * math.log(1 - math.random()) + math.random()) end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"p50_us":%.1f,"p99_us":%.1f,"failed":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
