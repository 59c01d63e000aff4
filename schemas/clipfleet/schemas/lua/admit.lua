-- admit: take requests into the queue, or refuse them without a trace.
--
-- KEYS  1 interactive lane   2 bulk lane   3 fleet   4 bytes   5 call
-- ARGV  1 lane ("interactive" or "bulk"), then for each request: id, ttl_ms, m
-- Reply {accepted, retry_after_ms, now_ms, {stream id or error code, one per request}}
--
-- In order; the first queue_full ends it (whatever follows is queue_full too), a malformed or too large request is
-- refused alone. The same call key within 60 s gets the first answer again, so that a client may retry a call whose
-- answer it lost. A call that took nothing writes nothing, the call key included.
local seen = redis.call('GET', KEYS[5])
if seen then return cjson.decode(seen) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bulk = ARGV[1] == 'bulk'
if not bulk and ARGV[1] ~= 'interactive' then
  return redis.error_reply('ERR admit: the lane is interactive or bulk')
end

local fleet = redis.call('HMGET', KEYS[3], 'capacity', 'bulk_capacity', 'max_request_bytes', 'max_queue_bytes', 'rate')
local capacity = tonumber(fleet[1]) or 10000
local bulk_capacity = tonumber(fleet[2]) or math.floor(capacity * 0.9)
local max_queue_bytes = tonumber(fleet[4]) or 268435456
-- What an empty queue has no room for would be queue_full for ever.
local max_request_bytes = math.min(tonumber(fleet[3]) or 8388608, max_queue_bytes)
local rate = tonumber(fleet[5]) or 0

local in_bulk = redis.call('XLEN', KEYS[2])
local backlog = redis.call('XLEN', KEYS[1]) + in_bulk
local places = capacity - backlog
if bulk then places = math.min(places, bulk_capacity - in_bulk) end
local held = tonumber(redis.call('GET', KEYS[4]) or '0') or 0
local room = max_queue_bytes - held
local lane = bulk and KEYS[2] or KEYS[1]

-- By the text of a time to live, the deadline; false = none. Requests of one call mostly share it. Plain digits only:
-- tonumber alone also takes "nan", "0x10" and "1.5".
local deadlines = setmetatable({}, {__index = function(known, text)
  local ttl = string.match(text, '^%d+$') and tonumber(text) or 0
  known[text] = ttl >= 1 and ttl <= 86400000 and string.format('%d', now + ttl)
  return known[text]
end})

local argv, find, try = ARGV, string.find, redis.pcall
local answers, place, accepted, added, full = {}, 0, 0, 0, false
for i = 2, #argv, 3 do
  local id, deadline, m = argv[i], deadlines[argv[i + 1] or ''], argv[i + 2]
  local answer
  if full then
    answer = 'queue_full'
  elseif not m or not deadline or #id > 64 or not find(id, '^[%w_-]+$') then
    answer = 'bad_request'
  else
    local size = #m
    if size > max_request_bytes then
      answer = 'too_large'
    elseif accepted >= places or added + size > room then
      answer, full = 'queue_full', true
    else
      answer = try('XADD', lane, '*', 'm', m, 'd', deadline)
      if type(answer) == 'table' then
        -- At maxmemory the first write is refused; after one write Redis lets a script finish.
        if not find(answer.err, 'OOM', 1, true) then return answer end
        answer, full = 'queue_full', true
      else
        accepted, added = accepted + 1, added + size
      end
    end
  end
  place = place + 1
  answers[place] = answer
end
backlog = backlog + accepted

local retry_after = 1000
if rate > 0 then retry_after = math.min(30000, math.max(50, math.ceil(backlog / rate * 1000))) end
local reply = {accepted, retry_after, now, answers}
if accepted > 0 then
  redis.call('INCRBY', KEYS[4], added)
  redis.call('SET', KEYS[5], cjson.encode(reply), 'PX', 60000)
end
return reply
