-- Idempotency keys in PostgreSQL 13 or newer. Every statement may be run again; `create()` of the store runs them, too.
-- `fence` grows with each attempt, of whichever key. Instants are by the clock of this server.

CREATE TABLE IF NOT EXISTS resilient_mw_idempotency (
    record       text COLLATE "C" PRIMARY KEY,
    fence        bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    state        text NOT NULL CHECK (state IN ('running', 'completed', 'unknown')),
    token        text NOT NULL,
    taken        boolean NOT NULL DEFAULT false,
    completed_by text NOT NULL DEFAULT '',
    fingerprint  text,
    began        timestamptz NOT NULL,
    lease_until  timestamptz NOT NULL,
    expires      timestamptz NOT NULL,
    caller       text NOT NULL,
    about_key    text NOT NULL,
    about_method text NOT NULL,
    about_route  text NOT NULL,
    about_caller text NOT NULL,
    answer       bytea
);

CREATE INDEX IF NOT EXISTS resilient_mw_idempotency_by_caller ON resilient_mw_idempotency (caller, expires);

CREATE INDEX IF NOT EXISTS resilient_mw_idempotency_by_expiry ON resilient_mw_idempotency (expires);
