-- +goose Up

-- The same tables as PostgreSQL's; times are microseconds since 1970, UTC.

-- The id of this ledger. A statement in the transaction of a caller compares it, before it writes into the wrong database.
CREATE TABLE once_ledger (
    only_row INTEGER PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    id       TEXT NOT NULL CHECK (id <> '')
);
INSERT INTO once_ledger (id) VALUES (lower(hex(randomblob(16))));

-- Rows are never deleted, so a number never gets another name. results: a program that has the kind publishes them.
CREATE TABLE once_kinds (
    number  INTEGER PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    results INTEGER NOT NULL DEFAULT FALSE
);

-- Limits of a kind over all instances. per_second, in_flight: what an operator has set, where 0 is no limit; null: the settings
-- apply. tat: the time at which all tokens that were given out are earned.
CREATE TABLE once_limits (
    kind       INTEGER PRIMARY KEY,
    per_second REAL CHECK (per_second >= 0),
    in_flight  INTEGER CHECK (in_flight >= 0),
    tat        INTEGER
);

-- The calls that an instance may run at once, while the kind has such a limit. Rows of killed instances end by until.
CREATE TABLE once_slots (
    kind   INTEGER NOT NULL,
    holder TEXT NOT NULL,
    slots  INTEGER NOT NULL CHECK (slots >= 0),
    wanted INTEGER NOT NULL CHECK (wanted > 0),
    until  INTEGER NOT NULL,
    PRIMARY KEY (kind, holder)
) WITHOUT ROWID;

-- What an instance does for a kind at the moment, and why it calls for nothing, such as while the breaker of its client is open.
-- For people alone: nothing is decided by it. An idle instance has no row. Rows of killed instances end by until.
CREATE TABLE once_instances (
    kind     INTEGER NOT NULL,
    holder   TEXT NOT NULL,
    began    INTEGER NOT NULL, -- the process
    at       INTEGER NOT NULL, -- it is written every few seconds
    until    INTEGER NOT NULL,
    reason   TEXT NOT NULL,    -- empty: it calls
    since    INTEGER NOT NULL, -- of the reason
    activity TEXT NOT NULL,    -- JSON
    PRIMARY KEY (kind, holder)
) WITHOUT ROWID;

-- A kind of which nothing is called for until it is resumed.
CREATE TABLE once_paused (
    kind  INTEGER PRIMARY KEY,
    since INTEGER NOT NULL,
    who   TEXT NOT NULL,
    why   TEXT NOT NULL
);

-- The database was restored: what was called for from since to until is not in it.
CREATE TABLE once_lost (
    kind  INTEGER NOT NULL,
    until INTEGER NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (kind, until)
) WITHOUT ROWID;

-- state: 1 running, 2 paused, 3 cancelled. parked: there may be parked rows in once_due. expected: the effects that it will have;
-- null: nobody has said.
CREATE TABLE once_groups (
    kind       INTEGER NOT NULL,
    grp        TEXT NOT NULL,
    state      INTEGER NOT NULL CHECK (state BETWEEN 1 AND 3),
    parked     INTEGER NOT NULL DEFAULT FALSE,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    expected   INTEGER CHECK (expected > 0),
    PRIMARY KEY (kind, grp)
);
CREATE INDEX once_groups_parked ON once_groups (kind, grp) WHERE parked AND state <> 2;
CREATE INDEX once_groups_created ON once_groups (kind, created_at, grp);

-- One row per effect. Columns that an effect does not need on its way to success are null, and there is no index but
-- the key. The CHECKs are the last defence against a wrong transition.
-- last_sent_at: the start of the last send, if lookups followed it. due: null, for PostgreSQL alone.
-- state: 1 pending, 2 sending, 3 error, 4 ambiguous, 5 success, 6 failed, 7 unknown, 8 cancelled.
CREATE TABLE once_effects (
    kind               INTEGER NOT NULL,
    lane               INTEGER NOT NULL,
    due                INTEGER,
    state              INTEGER NOT NULL,
    status             INTEGER,
    epoch              INTEGER,
    attempts           INTEGER,
    lookups            INTEGER,
    released           INTEGER,
    failures           INTEGER,
    interruptions      INTEGER,
    maybe_done         INTEGER,
    looking_up         INTEGER,
    not_done_seen      INTEGER,
    accepted_at        INTEGER NOT NULL,
    lease_until        INTEGER,
    next_attempt_at    INTEGER,
    first_sent_at      INTEGER,
    key_first_used_at  INTEGER,
    attempt_started_at INTEGER,
    last_sent_at       INTEGER,
    settled_at         INTEGER,
    not_before         INTEGER,
    grp                TEXT NOT NULL,
    id                 TEXT NOT NULL,
    part               TEXT,
    attempt_by         TEXT,
    receipt            TEXT,
    last_class         TEXT,
    last_error         TEXT,
    origin             TEXT,
    headers            TEXT,
    payload            BLOB NOT NULL,
    request            BLOB,
    PRIMARY KEY (kind, grp, id),
    CONSTRAINT once_effects_settled CHECK ((settled_at IS NOT NULL) = (state IN (5, 6, 7, 8))),
    CONSTRAINT once_effects_known_state CHECK (state BETWEEN 1 AND 8),
    CONSTRAINT once_effects_lease CHECK ((lease_until IS NOT NULL) = (state = 2)),
    CONSTRAINT once_effects_nothing_denied CHECK (NOT (coalesce(maybe_done, FALSE) AND state IN (1, 3, 6, 8))),
    CONSTRAINT once_effects_payload_size CHECK (length(payload) <= 65536 AND length(request) <= 65536)
);

-- An effect that is not settled has one row, and a settled one has none. at: when it is to be claimed; while it is called, the
-- end of the lease; null: it is parked, because its group is paused. number: random; effects have one in common that were accepted
-- together and have waited since.
CREATE TABLE once_due (
    kind    INTEGER NOT NULL,
    lane    INTEGER NOT NULL,
    calling INTEGER NOT NULL,
    at      INTEGER,
    grp     TEXT NOT NULL,
    id      TEXT NOT NULL,
    number  INTEGER,
    PRIMARY KEY (kind, grp, id)
) WITHOUT ROWID;
CREATE INDEX once_due_number ON once_due (number) WHERE number IS NOT NULL;
CREATE INDEX once_due_at ON once_due (kind, lane, at);
CREATE INDEX once_due_turn ON once_due (kind, lane, grp, at);
CREATE INDEX once_due_calling ON once_due (kind, grp) WHERE calling;
CREATE INDEX once_due_parked ON once_due (kind, grp, id) WHERE at IS NULL;

-- In PostgreSQL a row of once_due has many effects.
CREATE VIEW once_due_effects AS SELECT kind, lane, calling, at, grp, id FROM once_due;
CREATE VIEW once_effect_due AS SELECT kind, grp, id, calling, at FROM once_due;

-- One row per ended call, except a first call that ended done: the effect has that one. late: the answer came after
-- another begin.
CREATE TABLE once_attempts (
    kind       INTEGER NOT NULL,
    grp        TEXT NOT NULL,
    id         TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    late       INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    call       TEXT NOT NULL,
    instance   TEXT NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER NOT NULL,
    outcome    TEXT NOT NULL,
    class      TEXT,
    answer     TEXT,
    status     INTEGER,
    receipt    TEXT,
    PRIMARY KEY (kind, grp, id, epoch, late)
);

-- The effects that failed (6) or ended unknown (7).
CREATE TABLE once_problems (
    kind  INTEGER NOT NULL,
    grp   TEXT NOT NULL,
    id    TEXT NOT NULL,
    state INTEGER NOT NULL CHECK (state IN (6, 7)),
    at    INTEGER NOT NULL,
    class TEXT NOT NULL,
    PRIMARY KEY (kind, grp, id)
);
CREATE INDEX once_problems_state ON once_problems (state, kind, grp, id);

-- What became of effects of kinds that publish results, until it is published. attempts, receipt, class and error are those of
-- then, because an effect that is replayed ends again. until: an instance has taken the row, and nobody else does before.
CREATE TABLE once_results (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    kind     INTEGER NOT NULL,
    state    INTEGER NOT NULL CHECK (state BETWEEN 5 AND 8),
    attempts INTEGER NOT NULL,
    tries    INTEGER NOT NULL DEFAULT 0,
    at       INTEGER NOT NULL,
    until    INTEGER NOT NULL,
    grp      TEXT NOT NULL,
    id       TEXT NOT NULL,
    receipt  TEXT,
    class    TEXT,
    error    TEXT
);
CREATE INDEX once_results_until ON once_results (kind, until, number);

-- Counts that are not in once_totals yet. A transaction inserts rows of its own, so none waits for another one here.
-- number is random.
CREATE TABLE once_deltas (
    kind      INTEGER NOT NULL,
    grp       TEXT NOT NULL,
    part      TEXT NOT NULL,
    number    INTEGER NOT NULL,
    accepted  INTEGER NOT NULL DEFAULT 0,
    done      INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    unknown   INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, grp, part, number)
) WITHOUT ROWID;

-- The row with an empty group counts the whole kind.
CREATE TABLE once_totals (
    kind      INTEGER NOT NULL,
    grp       TEXT NOT NULL,
    part      TEXT NOT NULL,
    accepted  INTEGER NOT NULL,
    done      INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    unknown   INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    PRIMARY KEY (kind, grp, part)
) WITHOUT ROWID;

-- Actions of operators. An empty id: on the whole group; an empty group, too: on the kind.
CREATE TABLE once_audit (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    who     TEXT NOT NULL,
    why     TEXT NOT NULL,
    action  TEXT NOT NULL,
    kind    INTEGER NOT NULL,
    grp     TEXT NOT NULL,
    id      TEXT NOT NULL,
    detail  TEXT NOT NULL,
    db_user TEXT NOT NULL DEFAULT ''
);
CREATE INDEX once_audit_effect ON once_audit (kind, grp, id, number);

-- +goose Down
DROP TABLE once_audit;
DROP TABLE once_totals;
DROP TABLE once_deltas;
DROP TABLE once_results;
DROP TABLE once_problems;
DROP TABLE once_attempts;
DROP VIEW once_effect_due;
DROP VIEW once_due_effects;
DROP TABLE once_due;
DROP TABLE once_effects;
DROP TABLE once_groups;
DROP TABLE once_lost;
DROP TABLE once_paused;
DROP TABLE once_instances;
DROP TABLE once_slots;
DROP TABLE once_limits;
DROP TABLE once_kinds;
DROP TABLE once_ledger;
