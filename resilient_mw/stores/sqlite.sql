-- Idempotency keys in SQLite. Every statement may be run again. The store runs this itself when it is used first.
-- `id` is the fence of the attempt: each attempt inserts its row anew, and AUTOINCREMENT never gives a number twice.
-- Instants are seconds since 1970 by this machine's clock.

CREATE TABLE IF NOT EXISTS resilient_mw_idempotency (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    record       TEXT NOT NULL UNIQUE,
    state        TEXT NOT NULL CHECK (state IN ('running', 'completed', 'unknown')),
    token        TEXT NOT NULL,
    completed_by TEXT NOT NULL,
    fingerprint  TEXT,
    began        REAL NOT NULL,
    lease_until  REAL NOT NULL,
    expires      REAL NOT NULL,
    caller       TEXT NOT NULL,
    about_key    TEXT NOT NULL,
    about_method TEXT NOT NULL,
    about_route  TEXT NOT NULL,
    about_caller TEXT NOT NULL,
    answer       BLOB
);

CREATE INDEX IF NOT EXISTS resilient_mw_idempotency_by_caller ON resilient_mw_idempotency (caller, expires);

CREATE INDEX IF NOT EXISTS resilient_mw_idempotency_by_expiry ON resilient_mw_idempotency (expires);
