-- handback: give owned entries back to the queue at once, their lease taken as run out.
--
-- KEYS  1 lane
-- ARGV  1 consumer   2 lease_ms, then for each entry: stream id, delivery count to leave behind
-- Reply how many were handed back
--
-- The count is one less than it was for work that was never run (a shutdown), and unchanged for what a dead worker
-- held: that may have been what killed it.
local given = 0
for i = 3, #ARGV, 2 do
  local pending = redis.call('XPENDING', KEYS[1], 'workers', ARGV[i], ARGV[i], 1)
  if #pending == 1 and pending[1][2] == ARGV[1] then
    redis.call('XCLAIM', KEYS[1], 'workers', 'handback', 0, ARGV[i],
      'IDLE', ARGV[2], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    given = given + 1
  end
end
return given
