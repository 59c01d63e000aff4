-- leave: remove a consumer that holds nothing.
--
-- KEYS  1 interactive lane   2 bulk lane   3 workers   4 worker:<name>
-- ARGV  1 consumer
-- Reply in how many of the two lanes it still has pending entries: 0 = it is gone, else nothing was changed
--
-- XGROUP DELCONSUMER drops pending entries without a word; hence the look first, in the same script. ZREM comes first
-- of the writes: Redis 6.2 refuses XGROUP at maxmemory, but lets a script finish after one write.
local known, busy = {}, 0
for i = 1, 2 do
  local pending = redis.pcall('XPENDING', KEYS[i], 'workers', '-', '+', 1, ARGV[1])
  if not pending.err then
    known[#known + 1] = KEYS[i]
    if #pending > 0 then busy = busy + 1 end
  end
end
if busy > 0 then return busy end

redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('DEL', KEYS[4])
for _, lane in ipairs(known) do redis.call('XGROUP', 'DELCONSUMER', lane, 'workers', ARGV[1]) end
return 0
