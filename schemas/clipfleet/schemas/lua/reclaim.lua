-- reclaim: take over entries whose lease has run out.
--
-- KEYS  1 lane
-- ARGV  1 consumer   2 lease_ms   3 room   4 max_deliveries   5 solo ("1": the caller holds nothing at all)
--       6 cursor ("-" to start)
-- Reply {next cursor ("-" when the end was reached), suspects left, {{stream id, fields, deliveries}, ...}}
--
-- Why not XAUTOCLAIM with COUNT room: it raises the delivery count of everything it takes, run or not. A worker that
-- took 64 suspects and died of the first would bring the 63 bystanders a death nearer to `poisoned`. Here an entry
-- that was run before (a suspect) is taken one at a time, by a caller that holds nothing else; an entry handed back
-- unrun (delivery count 0) as far as there is room; one above max_deliveries at once, to be buried and not run.
--
-- Where room ran out the next call goes on: else whoever takes the first ones only to hand them back (their store is
-- away) would never see what waits behind them.
local lease, room, max = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local solo = ARGV[5] == '1'
local page = 256
local pending = redis.call('XPENDING', KEYS[1], 'workers', 'IDLE', lease, ARGV[6], '+', page)

local taken, suspects, cursor, left_at = {}, 0, ARGV[6], nil
for i = 1, #pending do
  local id, deliveries = pending[i][1], pending[i][4] + 1
  local suspect = deliveries > 1 and deliveries <= max
  local take
  if suspect then
    take = solo and #taken == 0
    if not take then suspects = suspects + 1 end
  else
    take = room > 0
    if not take and not left_at then left_at = cursor end
  end
  cursor = '(' .. id
  if take then
    local entry = redis.call('XCLAIM', KEYS[1], 'workers', ARGV[1], lease, id)[1]
    if entry and entry[2] then
      taken[#taken + 1] = {entry[1], entry[2], deliveries}
      room = room - 1
      if suspect then solo, room = false, 0 end
    else
      -- Deleted under our feet (no producer should): Redis before 7.0 keeps it pending for ever.
      redis.call('XACK', KEYS[1], 'workers', id)
    end
  end
end
if left_at then cursor = left_at elseif #pending < page then cursor = '-' end
return {cursor, suspects, taken}
