-- settle_many: end many requests of one lane, each as settle does without an owner and without a dead letter.
--
-- KEYS  1 their lane   2 the other lane   3 bytes   4... every reply_to, once
-- ARGV  for each reply_to: reply_ttl_ms (at least 1)
--       then for each request: stream id, size of m as admitted, which reply_to (1 is KEYS[4]), result
-- Reply for each request 1 settled by this call, 0 settled before, -1 refused, with nothing changed: settle says why
--
-- For answers, and for verdicts on an item: one of 64 costs Redis 0.37 of a call of its own. What one request
-- can be refused for is no matter of its neighbours; what the call can be refused for is checked before the first
-- write. The first write is XACK, since a Redis at maxmemory lets a script go on that has written already.
local count = #KEYS - 3
local items = (#ARGV - count) / 4
if count < 1 or items < 1 or items > 1000 or items ~= math.floor(items) then
  return redis.error_reply('ERR settle_many: 1 to 1000 requests, with four arguments each')
end
local ttls, fit = {}, {}
for number = 1, count do
  local ttl = string.match(ARGV[number], '^%d+$') and tonumber(ARGV[number])
  if not ttl or ttl < 1 or ttl > 86400000 then
    return redis.error_reply('ERR settle_many: reply_ttl_ms must be 1 to 86400000')
  end
  local kind = redis.call('TYPE', KEYS[3 + number])['ok']
  ttls[number], fit[number] = ttl, kind == 'none' or kind == 'list'
end
local elsewhere = redis.call('XLEN', KEYS[2])

local argv, lane, try, number_of = ARGV, KEYS[1], redis.pcall, tonumber
local answers, place, settled, acked, size, results = {}, 0, {}, 0, 0, {}
for i = count + 1, #argv, 4 do
  local number, answer = number_of(argv[i + 2]), -1
  if fit[number] then
    local id = argv[i]
    answer = try('XACK', lane, 'workers', id)
    if answer == 1 then
      acked = acked + 1
      settled[acked] = id
      size = size + (number_of(argv[i + 1]) or 0)
      local mine = results[number]
      if mine then mine[#mine + 1] = argv[i + 3] else results[number] = {argv[i + 3]} end
    elseif answer ~= 0 then
      answer = -1
    end
  end
  place = place + 1
  answers[place] = answer
end
if acked == 0 then return answers end

redis.call('XDEL', KEYS[1], unpack(settled))
if redis.call('XLEN', KEYS[1]) + elsewhere == 0 then
  redis.call('DEL', KEYS[3])
elseif size > 0 then
  local left = redis.pcall('DECRBY', KEYS[3], string.format('%d', size))
  if type(left) ~= 'number' or left <= 0 then redis.call('DEL', KEYS[3]) end
end
for number = 1, count do
  if results[number] then
    redis.call('RPUSH', KEYS[3 + number], unpack(results[number]))
    redis.call('PEXPIRE', KEYS[3 + number], ttls[number])
  end
end
return answers
