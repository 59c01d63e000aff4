-- renew: lengthen the leases of what a consumer still owns.
--
-- KEYS  1 lane
-- ARGV  1 consumer, then stream ids
-- Reply the stream ids that it owns no longer (settled, or reclaimed by another)
--
-- XCLAIM itself checks no owner: without the look into the pending list a paused worker would steal its work back.
local mine = {}
for _, entry in ipairs(redis.call('XPENDING', KEYS[1], 'workers', '-', '+', 10000, ARGV[1])) do
  mine[entry[1]] = true
end
local keep, lost = {'XCLAIM', KEYS[1], 'workers', ARGV[1], 0}, {}
for i = 2, #ARGV do
  if mine[ARGV[i]] then keep[#keep + 1] = ARGV[i] else lost[#lost + 1] = ARGV[i] end
end
if #keep > 5 then
  keep[#keep + 1] = 'JUSTID'
  redis.call(unpack(keep))
end
return lost
