-- heartbeat: say that a worker lives.
--
-- KEYS  1 workers   2 worker:<name>
-- ARGV  1 name   2 ttl_ms, then field, value, ... of its presence
-- Reply now_ms
--
-- PEXPIRE comes first: it needs no memory, and after one write Redis lets a script finish at maxmemory.
redis.call('PEXPIRE', KEYS[2], ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
local presence = {'HSET', KEYS[2]}
for i = 3, #ARGV do presence[#presence + 1] = ARGV[i] end
redis.call(unpack(presence))
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return now
