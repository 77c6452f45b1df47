-- The transitions of idempotency keys in Redis 6.2 or newer, or Valkey. One call is one transition: nothing comes in between.
--
-- KEYS[1]  the hash of the record; KEYS[2] the index by key; KEYS[3] the index by expiry; KEYS[4] the last fence;
-- KEYS[5]  the index of the caller's records, by expiry. All share a hash tag, so that they are in one slot of a cluster.
-- ARGV[1]  the transition, then what it takes. Instants are milliseconds by this server's clock.

local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
local record, by_key, by_expiry, last_fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local what = ARGV[1]

local function whole(number)
  return string.format('%.0f', number)
end

local function get(key, ...)
  local values = redis.call('HMGET', key, ...)
  for at = 1, #values do values[at] = values[at] or '' end
  return unpack(values)
end

-- State as it reads now, whether it is there at all.
local function state_of(key)
  local state, lease_until, expires = get(key, 'state', 'lease_until', 'expires')
  if state == '' or tonumber(expires) <= now then return nil end
  if state == 'running' and tonumber(lease_until) <= now then return 'unknown' end
  return state
end

local function shown(key)
  local state = state_of(key)
  if not state then return nil end
  local began, lease_until, expires = get(key, 'began', 'lease_until', 'expires')
  local fields = redis.call('HMGET', key, 'fingerprint', 'fence', 'about_key', 'about_method', 'about_route', 'about_caller')
  return {state, whole(now - began), whole(lease_until - now), whole(expires - now), unpack(fields)}
end

local function expire_at(key, name, caller_key, expires)
  redis.call('HSET', key, 'expires', whole(expires))
  redis.call('PEXPIREAT', key, whole(expires))
  redis.call('ZADD', by_expiry, whole(expires), name)
  if caller_key ~= '' then
    redis.call('ZADD', caller_key, whole(expires), name)
    local last = redis.call('ZREVRANGE', caller_key, 0, 0, 'WITHSCORES')
    redis.call('PEXPIREAT', caller_key, last[2])
  end
end

local function remove(key, name)
  local caller_key = get(key, 'caller_key')
  redis.call('DEL', key)
  redis.call('ZREM', by_key, name)
  redis.call('ZREM', by_expiry, name)
  if caller_key ~= '' then redis.call('ZREM', caller_key, name) end
end

-- Take the names of up to `most` records that have expired out of the indexes; the records themselves have gone by then.
local function sweep(most)
  local names = redis.call('ZRANGEBYSCORE', by_expiry, '-inf', now, 'LIMIT', 0, most)
  for _, name in ipairs(names) do
    redis.call('ZREM', by_expiry, name)
    redis.call('ZREM', by_key, name)
  end
  return #names
end

local function held(token)
  local state, own = get(record, 'state', 'token')
  return state_of(record) ~= nil and state == 'running' and own == token
end

if what == 'begin' then
  local name, token, lease, keep = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
  local take, fingerprint, most = ARGV[6] == '1', ARGV[7], tonumber(ARGV[8])
  local caller_key = KEYS[5] or ''
  if held(token) then
    local fence, taken = get(record, 'fence', 'taken')
    return {'begun', fence, taken}
  end
  local state = state_of(record)
  if state then
    local known = get(record, 'fingerprint')
    local same = known == '' or fingerprint == '' or known == fingerprint
    if not (take and state == 'unknown' and same) then
      return {'found', shown(record), redis.call('HGET', record, 'answer')}
    end
    caller_key = get(record, 'caller_key')
    if known ~= '' then fingerprint = known end
  elseif caller_key ~= '' then
    redis.call('ZREMRANGEBYSCORE', caller_key, '-inf', now)
    if redis.call('ZCARD', caller_key) >= most then
      return {'full', whole(redis.call('ZRANGE', caller_key, 0, 0, 'WITHSCORES')[2] - now)}
    end
  end
  sweep(2)
  -- Above every earlier one, also when all data was lost meanwhile, as far as the clock goes on.
  local fence = whole(math.max(micros, tonumber(redis.call('GET', last_fence) or '0') + 1))
  redis.call('SET', last_fence, fence)
  redis.call('DEL', record)
  redis.call('HSET', record, 'state', 'running', 'token', token, 'fence', fence, 'fingerprint', fingerprint, 'began', whole(now),
    'lease_until', whole(now + lease), 'caller_key', caller_key, 'taken', state and '1' or '0',
    'about_key', ARGV[9], 'about_method', ARGV[10], 'about_route', ARGV[11], 'about_caller', ARGV[12])
  redis.call('ZADD', by_key, 0, name)
  expire_at(record, name, caller_key, now + lease + keep)
  return {'begun', fence, state and '1' or '0'}
end

if what == 'renew' then
  local name, token, lease, keep = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
  if not held(token) then return 0 end
  redis.call('HSET', record, 'lease_until', whole(now + lease))
  expire_at(record, name, get(record, 'caller_key'), now + lease + keep)
  return 1
end

if what == 'complete' then
  local name, token, keep, fingerprint, answer = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
  if not held(token) then
    return (state_of(record) and get(record, 'completed_by') == token) and 1 or 0
  end
  local known, caller_key = get(record, 'fingerprint', 'caller_key')
  redis.call('HSET', record, 'state', 'completed', 'token', '', 'completed_by', token, 'answer', answer,
    'fingerprint', known ~= '' and known or fingerprint, 'lease_until', whole(now))
  expire_at(record, name, caller_key, now + keep)
  return 1
end

if what == 'abandon' then
  local name, token, keep, ending = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
  if not held(token) then return 0 end
  if ending == 'forget' then
    remove(record, name)
  else
    redis.call('HSET', record, 'state', 'unknown', 'token', '', 'lease_until', whole(now))
    expire_at(record, name, get(record, 'caller_key'), now + keep)
  end
  return 1
end

if what == 'look' then
  local fields = shown(record)
  return fields and {fields, redis.call('HGET', record, 'answer')} or {}
end

if what == 'release' then
  local state = state_of(record)
  if not state or (state == 'running' and ARGV[3] ~= '1') then return 0 end
  remove(record, ARGV[2])
  return 1
end

-- A page of the index, whose records may have gone: the caller asks on from the last name.
if what == 'records' then
  local after, most, prefix, wanted, limit = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
  local names = redis.call('ZRANGEBYLEX', by_key, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, most)
  local page, last = {}, ''
  for _, name in ipairs(names) do
    if #page == limit then return {last, page} end
    last = name
    local state = state_of(prefix .. name)
    if state and (wanted == '' or wanted == state) then page[#page + 1] = {name, shown(prefix .. name)} end
  end
  return {#names == most and last or '', page}
end

if what == 'purge' then
  return sweep(tonumber(ARGV[2]))
end

return redis.error_reply('there is no transition of this name')
