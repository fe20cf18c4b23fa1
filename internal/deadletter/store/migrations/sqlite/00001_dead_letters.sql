-- +goose Up

-- The same tables as those of PostgreSQL; times are microseconds since 1970, UTC.

-- One row per dead letter. seq is the order of storing; id is the same however often it is stored.
-- A generation ends with a replay. The next one begins when the replayed message fails again.
CREATE TABLE dead_letters (
    seq              INTEGER     PRIMARY KEY AUTOINCREMENT,
    id               TEXT        NOT NULL,
    lineage          TEXT        NOT NULL,
    state            TEXT        NOT NULL,
    generation       INTEGER     NOT NULL DEFAULT 1 CHECK (generation >= 1),
    plugin           TEXT        NOT NULL,
    handler          TEXT        NOT NULL,
    subject          TEXT        NOT NULL,
    class            TEXT        NOT NULL,
    error            TEXT        NOT NULL,
    fingerprint      TEXT        NOT NULL,
    kind             TEXT        NOT NULL,
    source           TEXT        NOT NULL,
    source_partition INTEGER,
    source_offset    INTEGER,
    entry_id         TEXT        NOT NULL,
    topic            TEXT        NOT NULL,
    attempts         INTEGER     NOT NULL,
    first_failed_at  INTEGER     NOT NULL,
    failed_at        INTEGER     NOT NULL,
    stored_at        INTEGER     NOT NULL,
    changed_at       INTEGER     NOT NULL,
    traceparent      TEXT        NOT NULL,
    uuid             TEXT        NOT NULL,
    record_key       BLOB        NOT NULL,
    headers          TEXT        NOT NULL,
    payload          BLOB        NOT NULL,
    CONSTRAINT dead_letters_id UNIQUE (id),
    CONSTRAINT dead_letters_lineage UNIQUE (lineage),
    CONSTRAINT dead_letters_state CHECK (state IN ('open', 'replaying', 'replayed', 'parked', 'discarded'))
);
CREATE INDEX dead_letters_waiting ON dead_letters (state, class, seq) WHERE state IN ('open', 'replaying', 'parked');
CREATE INDEX dead_letters_fingerprint ON dead_letters (fingerprint, seq);

-- Actions of persons, and failures after a replay. A replay that crashed has no final outcome.
CREATE TABLE dead_letter_actions (
    id         INTEGER     PRIMARY KEY AUTOINCREMENT,
    dead_letter TEXT       NOT NULL,
    generation INTEGER     NOT NULL,
    action     TEXT        NOT NULL CHECK (action IN ('replay', 'discard', 'return')),
    who        TEXT        NOT NULL,
    why        TEXT        NOT NULL,
    at         INTEGER     NOT NULL,
    outcome    TEXT        NOT NULL,
    detail     TEXT        NOT NULL,
    arrival    TEXT        UNIQUE
);
CREATE INDEX dead_letter_actions_dead_letter ON dead_letter_actions (dead_letter, id);
-- A generation is replayed once, whatever the code does.
CREATE UNIQUE INDEX dead_letter_actions_once ON dead_letter_actions (dead_letter, generation) WHERE action = 'replay' AND outcome = 'replayed';

-- Older versions hold this lock for a replay or discard; see migration 5.
CREATE TABLE dead_letter_lock (
    name       TEXT        PRIMARY KEY,
    holder     TEXT        NOT NULL,
    held_until INTEGER
);
INSERT INTO dead_letter_lock (name, holder) VALUES ('work', '');

-- +goose Down
DROP TABLE dead_letter_lock;
DROP TABLE dead_letter_actions;
DROP TABLE dead_letters;
