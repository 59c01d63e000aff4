-- settle: end one request. There is no moment in which it is neither queued nor answered.
--
-- KEYS  1 its lane   2 the other lane   3 bytes   4 reply_to   5 dead
-- ARGV  1 stream id   2 size of m as admitted (0 for a bare XADD)
--       3 owner: "" = whoever settles first, else only this consumer may
--       4 result   5 reply_ttl_ms (0 = nobody can be answered)
--       6... field, value, ... of a dead letter (none = no dead letter)
-- Reply 1 settled by this call, 0 settled before, -1 not the owner
--
-- Everything that can fail is checked before XACK, since a script that errs is not rolled back. XACK comes first of
-- the writes: a Redis at maxmemory refuses a script whose first write needs memory, and a full queue must drain.
-- Plain digits only: tonumber alone also takes "nan" and "0.5", at which PEXPIRE would fail below.
local ttl = string.match(ARGV[5] or '', '^%d+$') and tonumber(ARGV[5])
if not ttl or ttl > 86400000 then
  return redis.error_reply('ERR settle: reply_ttl_ms must be 0 to 86400000')
end
if ttl > 0 then
  local kind = redis.call('TYPE', KEYS[4])['ok']
  if kind ~= 'none' and kind ~= 'list' then
    return redis.error_reply('WRONGTYPE settle: reply_to holds a ' .. kind)
  end
end
if #ARGV > 5 then
  local kind = redis.call('TYPE', KEYS[5])['ok']
  if (kind ~= 'none' and kind ~= 'stream') or #ARGV % 2 == 0 or #ARGV > 99 then
    return redis.error_reply('WRONGTYPE settle: the dead letter cannot be written')
  end
end
local elsewhere = redis.call('XLEN', KEYS[2])
if ARGV[3] ~= '' then
  local pending = redis.call('XPENDING', KEYS[1], 'workers', ARGV[1], ARGV[1], 1)
  if #pending == 0 then return 0 end
  if pending[1][2] ~= ARGV[3] then return -1 end
end

if redis.call('XACK', KEYS[1], 'workers', ARGV[1]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[1])
if redis.call('XLEN', KEYS[1]) + elsewhere == 0 then
  redis.call('DEL', KEYS[3])
elseif ARGV[2] ~= '0' then
  local left = redis.pcall('DECRBY', KEYS[3], ARGV[2])
  if type(left) ~= 'number' or left <= 0 then redis.call('DEL', KEYS[3]) end
end
if ttl > 0 then
  redis.call('RPUSH', KEYS[4], ARGV[4])
  redis.call('PEXPIRE', KEYS[4], ttl)
end
if #ARGV > 5 then
  local letter = {'XADD', KEYS[5], 'MAXLEN', '1000', '*'}
  for i = 6, #ARGV do letter[#letter + 1] = ARGV[i] end
  redis.call(unpack(letter))
end
return 1
