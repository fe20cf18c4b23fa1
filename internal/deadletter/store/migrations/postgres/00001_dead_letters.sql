-- +goose Up

-- One row per dead letter. seq is the order of storing; id is the same however often it is stored.
-- A generation ends with a replay. The next one begins when the replayed message fails again.
CREATE TABLE dead_letters (
    seq              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id               text        NOT NULL,
    lineage          text        NOT NULL,
    state            text        NOT NULL,
    generation       integer     NOT NULL DEFAULT 1 CHECK (generation >= 1),
    plugin           text        NOT NULL,
    handler          text        NOT NULL,
    subject          text        NOT NULL,
    class            text        NOT NULL,
    error            text        NOT NULL,
    fingerprint      text        NOT NULL,
    kind             text        NOT NULL,
    source           text        NOT NULL,
    source_partition bigint,
    source_offset    bigint,
    entry_id         text        NOT NULL,
    topic            text        NOT NULL,
    attempts         bigint      NOT NULL,
    first_failed_at  timestamptz NOT NULL,
    failed_at        timestamptz NOT NULL,
    stored_at        timestamptz NOT NULL,
    changed_at       timestamptz NOT NULL,
    traceparent      text        NOT NULL,
    uuid             text        NOT NULL,
    record_key       bytea       NOT NULL,
    headers          text        NOT NULL,
    payload          bytea       NOT NULL,
    CONSTRAINT dead_letters_id UNIQUE (id),
    CONSTRAINT dead_letters_lineage UNIQUE (lineage),
    CONSTRAINT dead_letters_state CHECK (state IN ('open', 'replaying', 'replayed', 'parked', 'discarded'))
);
CREATE INDEX dead_letters_waiting ON dead_letters (state, class, seq) WHERE state IN ('open', 'replaying', 'parked');
CREATE INDEX dead_letters_fingerprint ON dead_letters (fingerprint, seq);

-- Actions of persons, and failures after a replay. A replay that crashed has no final outcome.
CREATE TABLE dead_letter_actions (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dead_letter text        NOT NULL,
    generation integer     NOT NULL,
    action     text        NOT NULL CHECK (action IN ('replay', 'discard', 'return')),
    who        text        NOT NULL,
    why        text        NOT NULL,
    at         timestamptz NOT NULL,
    outcome    text        NOT NULL,
    detail     text        NOT NULL,
    arrival    text        UNIQUE
);
CREATE INDEX dead_letter_actions_dead_letter ON dead_letter_actions (dead_letter, id);
-- A generation is replayed once, whatever the code does.
CREATE UNIQUE INDEX dead_letter_actions_once ON dead_letter_actions (dead_letter, generation) WHERE action = 'replay' AND outcome = 'replayed';

-- Older versions hold this lock for a replay or discard; see migration 5.
CREATE TABLE dead_letter_lock (
    name       text        PRIMARY KEY,
    holder     text        NOT NULL,
    held_until timestamptz
);
INSERT INTO dead_letter_lock (name, holder) VALUES ('work', '');

-- +goose Down
DROP TABLE dead_letter_lock;
DROP TABLE dead_letter_actions;
DROP TABLE dead_letters;
