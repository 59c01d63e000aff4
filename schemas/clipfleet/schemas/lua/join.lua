-- join: agree with the fleet on its settings, or learn where one differs.
--
-- KEYS  1 fleet   2 workers
-- ARGV  1 worker   2 alive_ms: a heartbeat older than this is a dead worker's   3 "force" or ""
--       then field, value, ...
-- Reply {} joined, or {field, the fleet's value, ours, ...} for each that differs
--
-- The first worker writes the hash. With no living worker it is overwritten; a living fleet is never changed under
-- its workers unless forced. The worker is entered in the same script, so that two first ones cannot both be first.
--
-- Names not heard of for a day go first. That write needs no memory, and after one write Redis lets a script finish:
-- a full Redis must drain with a worker that starts only then.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local living = redis.call('ZCOUNT', KEYS[2], now - ARGV[2], '+inf')
local differs, missing = {}, {'HSET', KEYS[1]}
for i = 4, #ARGV, 2 do
  local theirs = redis.call('HGET', KEYS[1], ARGV[i])
  if theirs ~= ARGV[i + 1] then
    missing[#missing + 1] = ARGV[i]
    missing[#missing + 1] = ARGV[i + 1]
    if theirs then
      differs[#differs + 1] = ARGV[i]
      differs[#differs + 1] = theirs
      differs[#differs + 1] = ARGV[i + 1]
    end
  end
end
if #differs > 0 and living > 0 and ARGV[3] ~= 'force' then return differs end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 86400000)
if #missing > 2 then redis.call(unpack(missing)) end
if ARGV[1] ~= '' then redis.call('ZADD', KEYS[2], now, ARGV[1]) end
return {}
