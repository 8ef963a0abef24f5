-- Ids are writer << 40 | sequence: they grow with time, so that the busiest tables are written at
-- their end. The numbers in `tier`, `place`, `state`, `cause` and the like are defined in `column.rs`.

CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- `starts` counts sessions: it is the writer part of new ids, and the epoch. The first opening adds, once for
-- the life of the store: `key_check` (identifies the master key; during a rotation both, the newer first),
-- `id_key` (encrypts ids to public ids; sealed), `store_id`, `public_key` (verifies checkpoints), `last_key`
-- (the highest number of a data key). No row below `low` is ready. Data keys that a master key wraps are
-- written to `master_wrapped_0` or `_1`: `wrapped_in` is the 0 or 1. A rotation has moved `rewrapped` of them.
-- `followed` and `following` are rows of the journal: see `history`.
INSERT INTO meta VALUES ('starts', 0), ('followed', 0), ('following', 0), ('low', 0), ('wrapped_in', 0),
  ('rewrapped', 0);

-- Data keys, wrapped: number 1 is the store's own, the others belong to tenants and their subjects. A value whose
-- key was deleted cannot be opened. Numbers are never used again.
CREATE TABLE data_key (
  id INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,                   -- -1 for the store's own key
  subject BLOB NOT NULL,                     -- a keyed hash of the subject; empty for the tenant's own key
  wrapped BLOB                               -- under the tenant's key; null where a master key wraps it
) STRICT;

CREATE UNIQUE INDEX data_key_of ON data_key (tenant, subject);

-- The store's key and the tenants' keys, wrapped by a master key. One of the two tables is empty, except while the
-- master key is rotated: then rows move from one to the other, wrapped under the new key. The old table is cleared as
-- a whole afterwards, since unused space of its pages may hold old bytes that belong to no row.
CREATE TABLE master_wrapped_0 (id INTEGER PRIMARY KEY, wrapped BLOB NOT NULL) STRICT;
CREATE TABLE master_wrapped_1 (id INTEGER PRIMARY KEY, wrapped BLOB NOT NULL) STRICT;

CREATE TRIGGER data_key_gone AFTER DELETE ON data_key WHEN OLD.wrapped IS NULL BEGIN
  DELETE FROM master_wrapped_0 WHERE id = OLD.id;
  DELETE FROM master_wrapped_1 WHERE id = OLD.id;
END;

-- Erasures of subjects and tenants, and their progress. A row is deleted with the row of the journal that
-- announced it.
CREATE TABLE erasure (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant INTEGER NOT NULL,
  kind INTEGER NOT NULL CHECK (kind IN (0, 1)),          -- subject, whole tenant
  hidden BLOB NOT NULL,                      -- keyed hash of the subject or tenant, as in the file `erasures`
  mark BLOB,                                 -- the subject's keyed hash in the journal; null where there is none
  row INTEGER NOT NULL,                      -- the row of the journal that announced it
  at_ms INTEGER NOT NULL,
  phase INTEGER NOT NULL CHECK (phase BETWEEN 0 AND 10),
  cursor INTEGER NOT NULL,
  left_over INTEGER NOT NULL,                -- messages passed over in this pass, since a delivery was in flight
  messages INTEGER NOT NULL,
  deliveries INTEGER NOT NULL,
  done_ms INTEGER
) STRICT;

CREATE INDEX erasure_open ON erasure (tenant) WHERE done_ms IS NULL;

-- Everything that the producer chose is sealed. Equal event types of a tenant have equal ciphertexts.
CREATE TABLE message (
  id INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  tier INTEGER NOT NULL,
  event_type TEXT,
  names BLOB,                                -- keyed hashes of correlation id and subject, as in `name`
  head BLOB NOT NULL,                        -- every field but the payloads
  compact BLOB,
  body BLOB NOT NULL
) STRICT;

-- Calls with an idempotency key that created something: a repeated call gets the first answer. The day is the first
-- column of the key so that old rows are deleted as a range.
CREATE TABLE idempotency (
  day INTEGER NOT NULL,                      -- of UTC, from 1970
  tenant INTEGER NOT NULL,
  key BLOB NOT NULL,                         -- a keyed hash of the idempotency key
  digest BLOB NOT NULL,                      -- of the request, keyed
  status INTEGER NOT NULL,
  answer BLOB NOT NULL,                      -- sealed
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (day, tenant, key)
) STRICT, WITHOUT ROWID;

-- Messages past their retention that an unfinished delivery or a dead letter still needs.
CREATE TABLE kept (
  id INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  tier INTEGER NOT NULL,
  event_type TEXT,
  names BLOB,
  head BLOB NOT NULL,
  compact BLOB,
  body BLOB NOT NULL
) STRICT;

-- Unfinished deliveries only: a row is deleted when its delivery ends. Columns up to `compact` are those of
-- `outcome`, in the same order.
CREATE TABLE delivery (
  id INTEGER PRIMARY KEY,
  back INTEGER NOT NULL,                     -- its message's id is id - back
  endpoint INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  tier INTEGER NOT NULL CHECK (tier BETWEEN 0 AND 2),
  state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2),  -- queued, retry, awaiting ack
  due_ms INTEGER NOT NULL,
  cause INTEGER,                             -- of the state
  attempts INTEGER NOT NULL,
  born_ms INTEGER NOT NULL,
  expiry INTEGER NOT NULL,                   -- never, at, now or never
  expires_ms INTEGER,
  previous_wait_us INTEGER,
  limited_in_a_row INTEGER NOT NULL,
  last_cause INTEGER,
  ack_within_us INTEGER,
  compact INTEGER NOT NULL,                  -- none, spare, in use
  place INTEGER NOT NULL CHECK (place BETWEEN 0 AND 2),  -- ready, delayed, spilled
  collapse INTEGER,                          -- a keyed hash of the collapse key: any 64-bit number
  mac BLOB NOT NULL,                         -- of the columns up to `compact`; a forged row has no valid one
  CHECK ((state = 0) = (attempts = 0)),      -- queued is what was not tried yet
  CHECK ((state = 1) = (cause IS NOT NULL)),
  CHECK (state <> 2 OR ack_within_us IS NOT NULL),
  CHECK (expiry BETWEEN 0 AND 2 AND (expiry = 0) = (expires_ms IS NULL))
) STRICT;

-- The only indexes of the pending table; a fresh row without a collapse key is in none of them, since
-- writing a random index page costs more than the rest of a delivery. Like every index of a rowid table
-- they end with the id.
CREATE INDEX delivery_late ON delivery (due_ms) WHERE place = 1;
CREATE INDEX delivery_spill ON delivery (lane, tier) WHERE place = 2;
CREATE INDEX delivery_collapse ON delivery (lane, collapse) WHERE collapse IS NOT NULL;

-- Deliveries that have ended, each with the attempt that ended it: one short row for a successful delivery.
CREATE TABLE outcome (
  id INTEGER PRIMARY KEY,
  back INTEGER NOT NULL,
  endpoint INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  tier INTEGER NOT NULL,
  state INTEGER NOT NULL CHECK (state BETWEEN 3 AND 6),  -- delivered, dead, expired, cancelled
  ended_ms INTEGER NOT NULL,
  cause INTEGER,
  attempts INTEGER NOT NULL,
  born_ms INTEGER NOT NULL,
  expiry INTEGER NOT NULL,
  expires_ms INTEGER,
  previous_wait_us INTEGER,
  limited_in_a_row INTEGER NOT NULL,
  last_cause INTEGER,
  ack_within_us INTEGER,
  compact INTEGER NOT NULL,
  number INTEGER,                            -- of the attempt; null when none led to the end
  at_ms INTEGER,
  took_us INTEGER,
  attempt_cause INTEGER,
  status INTEGER,
  CHECK ((state IN (4, 6)) = (cause IS NOT NULL)),
  CHECK (state <> 3 OR attempts > 0)         -- nothing is delivered untried
) STRICT;

-- Every other attempt. `late` attempts were recorded after the end of their delivery.
CREATE TABLE attempt (
  delivery INTEGER NOT NULL,
  late INTEGER NOT NULL CHECK (late IN (0, 1)),
  place INTEGER NOT NULL,                    -- in the order they were recorded
  number INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  took_us INTEGER NOT NULL,
  cause INTEGER NOT NULL,
  status INTEGER,
  PRIMARY KEY (delivery, late, place)
) STRICT, WITHOUT ROWID;

-- The first bytes of receivers' answers to failed attempts.
CREATE TABLE excerpt (
  delivery INTEGER NOT NULL,
  number INTEGER NOT NULL,
  tenant INTEGER NOT NULL,
  sealed BLOB NOT NULL,                      -- under the key of its message
  PRIMARY KEY (delivery, number)
) STRICT, WITHOUT ROWID;

-- Dead letters, numbered in the order of filing. A number is never used again, so that a purge covers only
-- the dead letters that were filed before it was requested.
CREATE TABLE dead_letter (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  delivery INTEGER NOT NULL,
  message INTEGER NOT NULL,
  tenant INTEGER NOT NULL,
  endpoint INTEGER NOT NULL,
  tier INTEGER NOT NULL,
  cause INTEGER NOT NULL,
  event_type TEXT,
  attempts INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  replayed_as INTEGER                        -- its next life
) STRICT;

-- An index for each filter, in the order of a list: by time, then by number.
CREATE UNIQUE INDEX dead_letter_delivery ON dead_letter (delivery);
CREATE INDEX dead_letter_time ON dead_letter (at_ms);
CREATE INDEX dead_letter_tenant ON dead_letter (tenant, at_ms);
CREATE INDEX dead_letter_endpoint ON dead_letter (endpoint, at_ms);
CREATE INDEX dead_letter_cause ON dead_letter (tenant, cause, at_ms);
CREATE INDEX dead_letter_event_type ON dead_letter (tenant, event_type, at_ms) WHERE event_type IS NOT NULL;
CREATE INDEX dead_letter_tier ON dead_letter (tenant, tier, at_ms);

-- Purges under way: dead letters that match, with numbers up to `upto`, are neither listed nor replayed.
CREATE TABLE dead_cut (
  id INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,
  endpoint INTEGER,
  cause INTEGER,
  event_type TEXT,
  tier INTEGER,
  since_ms INTEGER,
  until_ms INTEGER,
  upto INTEGER NOT NULL,
  swept_ms INTEGER,                          -- swept up to this place, oldest first
  swept_number INTEGER
) STRICT;

-- The journal of events, in the order of their commits: one row for each group commit, linked by `before`.
CREATE TABLE journal (
  number INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,                    -- of the latest entry in it or before it
  packed BLOB NOT NULL,
  root BLOB NOT NULL CHECK (length(root) = 32),          -- of the tree over the entries
  before BLOB NOT NULL CHECK (length(before) = 32)       -- hash of the row before
) STRICT;

-- Checkpoints: signed lines that state how the journal ended at a time, by its last row then.
CREATE TABLE checkpoint (
  row INTEGER PRIMARY KEY,
  line TEXT NOT NULL
) STRICT;

-- The following tables are derived from the journal and can be rebuilt from it. They include its rows up to the
-- `followed` of `meta`, and part of the batch up to `following`. In tables of counts, `upto` is the last row
-- counted.
CREATE TABLE history (
  endpoint INTEGER NOT NULL,
  delivery INTEGER NOT NULL,
  PRIMARY KEY (endpoint, delivery)
) STRICT, WITHOUT ROWID;

CREATE TABLE name (
  kind INTEGER NOT NULL CHECK (kind IN (0, 1)),          -- subject, correlation
  hidden BLOB NOT NULL,
  message INTEGER NOT NULL,
  PRIMARY KEY (kind, hidden, message)
) STRICT, WITHOUT ROWID;

CREATE TABLE queue_count (
  lane INTEGER NOT NULL,
  tier INTEGER NOT NULL,
  pending INTEGER NOT NULL,
  upto INTEGER NOT NULL,
  PRIMARY KEY (lane, tier)
) STRICT, WITHOUT ROWID;

-- The counts of all queues together.
CREATE TABLE depth (
  counted INTEGER PRIMARY KEY CHECK (counted BETWEEN 0 AND 3),     -- each tier; of all tiers, not yet tried
  pending INTEGER NOT NULL,
  upto INTEGER NOT NULL
) STRICT;

CREATE TABLE tally (
  tenant INTEGER NOT NULL,
  hour INTEGER NOT NULL,
  counted INTEGER NOT NULL,
  count INTEGER NOT NULL,
  upto INTEGER NOT NULL,
  PRIMARY KEY (tenant, hour, counted)
) STRICT, WITHOUT ROWID;

-- Retention overrides of tenants: null is the default retention. Derived from the journal; the tenants'
-- documents hold the setting itself.
CREATE TABLE own_retention (
  tenant INTEGER PRIMARY KEY,
  payload_ms INTEGER,
  history_ms INTEGER,
  told_ms INTEGER NOT NULL,                  -- time of the last entry of the journal that states it
  CHECK (payload_ms > 0 OR history_ms > 0)
) STRICT;

CREATE INDEX own_retention_payload ON own_retention (payload_ms) WHERE payload_ms IS NOT NULL;
CREATE INDEX own_retention_history ON own_retention (history_ms) WHERE history_ms IS NOT NULL;

-- The progress of retention: up to `upto`, everything of tenants with this retention has been deleted.
CREATE TABLE retention_walk (
  phase INTEGER NOT NULL,
  kept_ms INTEGER NOT NULL,                  -- 0: the default retention
  upto INTEGER NOT NULL,                     -- a message, a delivery or a row of the journal
  PRIMARY KEY (phase, kept_ms)
) STRICT, WITHOUT ROWID;

-- Deliveries of a message that a fan-out job made after the accept, as ranges of ids.
CREATE TABLE fanout_chunk (
  message INTEGER NOT NULL,
  first INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (message, first)
) STRICT, WITHOUT ROWID;

-- Jobs make deliveries in chunks; the cursor is after the last item that was dealt with.
CREATE TABLE job (
  id INTEGER PRIMARY KEY,                    -- of a fan-out: the id of its message
  tenant INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 4),    -- fan-out; replay of dead letters, of a list, of ended
                                             -- deliveries, of messages that an endpoint is missing
  state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),  -- running, paused, done, cancelled
  cursor_ms INTEGER NOT NULL,
  cursor_number INTEGER NOT NULL,
  made INTEGER NOT NULL,
  total INTEGER,
  counted INTEGER,                           -- exactly, at least
  per_second INTEGER,
  tier INTEGER,                              -- the message's, or the filter's
  deliver_at_ms INTEGER,
  ttl_us INTEGER,
  endpoint INTEGER,                          -- from here on the filter
  cause INTEGER,
  event_type TEXT,
  since_ms INTEGER,
  until_ms INTEGER,
  upto INTEGER,                              -- dead letters: the last number; ended: whether dead ones are included
  reason TEXT                                -- sealed
) STRICT;

CREATE INDEX job_tenant ON job (tenant);
CREATE INDEX job_running ON job (state) WHERE state = 0;
CREATE INDEX job_fan_out ON job (kind, state) WHERE kind = 0 AND state = 0;
CREATE INDEX job_replaying ON job (tenant, state) WHERE state = 0 AND kind > 0;
CREATE INDEX job_replay ON job (id) WHERE kind > 0;

-- How many items jobs passed over, by reason.
CREATE TABLE job_skip (
  job INTEGER NOT NULL,
  why INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (job, why)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER job_gone AFTER DELETE ON job BEGIN
  DELETE FROM job_skip WHERE job = OLD.id;
END;

CREATE TABLE replay_listed (
  job INTEGER NOT NULL,
  place INTEGER NOT NULL,
  delivery INTEGER NOT NULL,
  PRIMARY KEY (job, place)
) STRICT, WITHOUT ROWID;

-- Next lives: a delivery has at most one.
CREATE TABLE replay_life (
  old INTEGER PRIMARY KEY,
  new INTEGER NOT NULL,
  job INTEGER NOT NULL,
  at_ms INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX replay_life_new ON replay_life (new);

-- Deliveries that replays made of messages their endpoint was missing: each message once.
CREATE TABLE replay_missed (
  message INTEGER NOT NULL,
  endpoint INTEGER NOT NULL,
  delivery INTEGER NOT NULL,
  job INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (message, endpoint)
) STRICT, WITHOUT ROWID;

CREATE TABLE cut (
  kind INTEGER NOT NULL CHECK (kind IN (0, 1)),          -- message, lane
  scope INTEGER NOT NULL,
  upto INTEGER NOT NULL,
  cause INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (kind, scope)
) STRICT, WITHOUT ROWID;

-- Deliveries that were in flight when a cut was made; emptied by every start.
CREATE TABLE spared (
  kind INTEGER NOT NULL,
  scope INTEGER NOT NULL,
  delivery INTEGER NOT NULL,
  PRIMARY KEY (kind, scope, delivery)
) STRICT, WITHOUT ROWID;

CREATE TABLE pause (
  kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 3),    -- everything, tenant, lane, origin
  scope INTEGER NOT NULL,                    -- of an origin a hash: any 64-bit number
  until_ms INTEGER,
  sealed BLOB,                               -- origin, reason and API key, those that are known; null if none is
  PRIMARY KEY (kind, scope)
) STRICT, WITHOUT ROWID;

-- Breakers that were not closed, as of a few seconds ago.
CREATE TABLE soft_breaker (
  kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 4),    -- lane, origin, region, credential, resolver
  id INTEGER NOT NULL,                       -- of an origin a hash: any 64-bit number
  since_ms INTEGER NOT NULL,
  hold_us INTEGER NOT NULL,
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

-- Tenants, API keys and policies: the objects besides endpoints that callers of the API create and change.
CREATE TABLE document (
  kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 2),    -- tenant, API key, policy
  id INTEGER NOT NULL,
  tenant INTEGER NOT NULL,                   -- 0: belongs to no tenant
  name BLOB,                                 -- a keyed hash of the name
  at_ms INTEGER NOT NULL,
  sealed BLOB NOT NULL,                      -- its name and content
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX document_name ON document (name) WHERE name IS NOT NULL;
CREATE INDEX document_tenant ON document (kind, tenant, id);

CREATE TABLE endpoint (
  id INTEGER PRIMARY KEY,
  lane INTEGER NOT NULL,
  tenant INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  version INTEGER NOT NULL,                  -- grows by one with each change
  uid BLOB,                                  -- a keyed hash of the uid
  subject BLOB,                              -- 16 bytes of a keyed hash of tenant and subject
  tags BLOB,                                 -- its rows of endpoint_tag: 16 bytes for each tag, in their order
  sealed BLOB NOT NULL,                      -- all that its owner set; empty once it is deleted
  ttl_us INTEGER,
  send_order INTEGER NOT NULL CHECK (send_order BETWEEN 0 AND 2),  -- fifo, newest first, strict
  on_dead INTEGER NOT NULL CHECK (on_dead IN (0, 1)),    -- skip, hold
  max_in_flight INTEGER NOT NULL,
  status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3) -- active, gone, disabled by its receiver, deleted
) STRICT;

CREATE UNIQUE INDEX endpoint_lane ON endpoint (lane);
CREATE INDEX endpoint_tenant ON endpoint (tenant) WHERE status <> 3;
CREATE INDEX endpoint_deleted ON endpoint (tenant) WHERE status = 3;
CREATE UNIQUE INDEX endpoint_uid ON endpoint (uid) WHERE uid IS NOT NULL;
CREATE INDEX endpoint_subject ON endpoint (subject) WHERE subject IS NOT NULL;

-- The endpoints that carry a tag; rows are written and removed together with the endpoint's own row.
CREATE TABLE endpoint_tag (
  tag BLOB NOT NULL,                         -- 16 bytes of a keyed hash of tenant and tag
  endpoint INTEGER NOT NULL,
  PRIMARY KEY (tag, endpoint)
) STRICT, WITHOUT ROWID;
