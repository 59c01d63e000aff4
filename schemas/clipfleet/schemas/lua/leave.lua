-- leave: remove a consumer that holds nothing.
--
-- KEYS  1 interactive lane   2 bulk lane   3 workers   4 worker:<name>
-- ARGV  1 consumer
-- Reply how many of the two lanes still have pending entries of it (0 = gone)
--
-- XGROUP DELCONSUMER drops pending entries without a word; hence the look first, in the same script.
local busy = 0
for i = 1, 2 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    local pending = redis.pcall('XPENDING', KEYS[i], 'workers', '-', '+', 1, ARGV[1])
    if not pending.err then
      if #pending > 0 then busy = busy + 1
      else redis.call('XGROUP', 'DELCONSUMER', KEYS[i], 'workers', ARGV[1]) end
    end
  end
end
if busy == 0 then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('DEL', KEYS[4])
end
return busy
