-- wrk's side of the bench. Settings come as BENCH_* variables; the result goes out as one line of JSON.
--   BENCH_PREFIX, BENCH_PROMPT, BENCH_SUFFIX   the body, in the order in which they make it
--   BENCH_UNIQUE=1    in place of the prompt one never asked before, made of BENCH_WORDS, in every request
--   BENCH_PROMPTS     a file: its lines in turn are the prompts, with a number behind them from the second time on
--   BENCH_MOST_SPACES above 0, so many spaces at most between the words of the prompt, others in every request
--   BENCH_TARGET      the path of the URL
--   BENCH_HEADERS     more headers, a "name: value" a line
--   BENCH_WAY         replies whose x-tierline-path is another are counted as `strayed`; empty, none are looked at
--   BENCH_THINK_MS    mean pause of a connection between a reply and its next request (half load)
local words_file, unique = os.getenv("BENCH_WORDS"), os.getenv("BENCH_UNIQUE") == "1"
local think = tonumber(os.getenv("BENCH_THINK_MS") or "0")
local prefix, suffix = os.getenv("BENCH_PREFIX"), os.getenv("BENCH_SUFFIX")
local fixed = os.getenv("BENCH_PROMPT")
local most_spaces, way = tonumber(os.getenv("BENCH_MOST_SPACES")), os.getenv("BENCH_WAY")
local target, prompts_file = os.getenv("BENCH_TARGET"), os.getenv("BENCH_PROMPTS")
local words, prompts, head, threads, sent = {}, {}, nil, {}, 0
strayed = 0

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Host"] = "127.0.0.1"
for name, value in os.getenv("BENCH_HEADERS"):gmatch("([^:\n]+): ([^\n]*)") do wrk.headers[name] = value end
wrk.body = prefix .. fixed .. suffix

function setup(thread) threads[#threads + 1] = thread end

function init(args)
  for line in io.lines(words_file) do words[#words + 1] = line end
  if prompts_file ~= "" then for line in io.lines(prompts_file) do prompts[#prompts + 1] = line end end
  math.randomseed(tonumber(os.getenv("BENCH_SEED")))
  head = wrk.format(nil, target)
end

local function prompt()
  local picked = {}
  for i = 1, 10 do picked[i] = words[math.random(#words)] end
  return table.concat(picked, " ") .. " " .. math.random(1000000000)
end

local function next_line()
  local line, times = prompts[sent % #prompts + 1], math.floor(sent / #prompts)
  sent = sent + 1
  return times == 0 and line or line .. " " .. times
end

function request()
  if #prompts > 0 then return wrk.format(nil, target, nil, prefix .. next_line() .. suffix) end
  if most_spaces > 0 then
    local spaced = fixed:gsub(" ", function() return string.rep(" ", math.random(most_spaces)) end)
    return wrk.format(nil, target, nil, prefix .. spaced .. suffix)
  end
  if not unique then return head end
  return wrk.format(nil, target, nil, prefix .. prompt() .. suffix)
end

if way ~= "" then  -- only then: with this function wrk parses every reply's headers
  function response(status, headers, body)
    for name, value in pairs(headers) do
      if name:lower() == "x-tierline-path" and value == way then return end
    end
    strayed = strayed + 1
  end
end

if think > 0 then
  function delay() return math.floor(-think * math.log(1 - math.random()) + math.random()) end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"p50_us":%.1f,"p99_us":%.1f,"failed":%d,"strayed":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    threads[1]:get("strayed")))
end
