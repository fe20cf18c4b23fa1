-- +goose Up

-- The id of this ledger. A statement in the transaction of a caller compares it, before it writes into the wrong database.
CREATE TABLE once_ledger (
    only_row boolean PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    id       text NOT NULL CHECK (id <> '')
);
INSERT INTO once_ledger (id) VALUES (gen_random_uuid()::text);

-- Rows are never deleted, so a number never gets another name. results: a program that has the kind publishes them.
CREATE TABLE once_kinds (
    number  smallint PRIMARY KEY,
    name    text COLLATE "C" NOT NULL UNIQUE,
    results boolean NOT NULL DEFAULT FALSE
);

-- Limits of a kind over all instances. per_second, in_flight: what an operator has set, where 0 is no limit; null: the settings
-- apply. tat: the time at which all tokens that were given out are earned.
CREATE TABLE once_limits (
    kind       smallint PRIMARY KEY,
    per_second double precision CHECK (per_second >= 0),
    in_flight  int CHECK (in_flight >= 0),
    tat        timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The calls that an instance may run at once, while the kind has such a limit. Rows of killed instances end by until.
CREATE TABLE once_slots (
    kind   smallint NOT NULL,
    holder text COLLATE "C" NOT NULL,
    slots  int NOT NULL CHECK (slots >= 0),
    wanted int NOT NULL CHECK (wanted > 0),
    until  timestamptz NOT NULL,
    PRIMARY KEY (kind, holder)
) WITH (fillfactor = 50);

-- What an instance does for a kind at the moment, and why it calls for nothing, such as while the breaker of its client is open.
-- For people alone: nothing is decided by it. An idle instance has no row. Rows of killed instances end by until.
CREATE TABLE once_instances (
    kind     smallint NOT NULL,
    holder   text COLLATE "C" NOT NULL,
    began    timestamptz NOT NULL, -- the process
    at       timestamptz NOT NULL, -- it is written every few seconds
    until    timestamptz NOT NULL,
    reason   text NOT NULL,        -- empty: it calls
    since    timestamptz NOT NULL, -- of the reason
    activity text NOT NULL,        -- JSON
    PRIMARY KEY (kind, holder)
) WITH (fillfactor = 50);

-- A kind of which nothing is called for until it is resumed. A claim reads it under a lock that a pause takes alone.
CREATE TABLE once_paused (
    kind  smallint PRIMARY KEY,
    since timestamptz NOT NULL,
    who   text NOT NULL,
    why   text NOT NULL
);

-- The database was restored: what was called for from since to until is not in it.
CREATE TABLE once_lost (
    kind  smallint NOT NULL,
    until timestamptz NOT NULL,
    since timestamptz NOT NULL,
    PRIMARY KEY (kind, until)
);

-- state: 1 running, 2 paused, 3 cancelled. parked: there may be parked rows in once_due. expected: the effects that it will have;
-- null: nobody has said.
CREATE TABLE once_groups (
    kind       smallint NOT NULL,
    grp        text COLLATE "C" NOT NULL,
    state      smallint NOT NULL CHECK (state BETWEEN 1 AND 3),
    parked     boolean NOT NULL DEFAULT FALSE,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    expected   bigint CHECK (expected > 0),
    PRIMARY KEY (kind, grp)
);
CREATE INDEX once_groups_parked ON once_groups (kind, grp) WHERE parked AND state <> 2;
CREATE INDEX once_groups_created ON once_groups (kind, created_at, grp);

-- One row per effect. Columns that an effect does not need on its way to success are null, and there is no index but
-- the key, so the updates of a claim and a settle stay in the page. The CHECKs are the last defence against a wrong transition.
-- last_sent_at: the start of the last send, if lookups followed it. due: the number of its row in once_due, null once settled.
-- state: 1 pending, 2 sending, 3 error, 4 ambiguous, 5 success, 6 failed, 7 unknown, 8 cancelled.
CREATE TABLE once_effects (
    kind               smallint NOT NULL,
    lane               smallint NOT NULL,
    due                bigint,
    state              smallint NOT NULL,
    status             smallint,
    epoch              bigint,
    attempts           int,
    lookups            int,
    released           int,
    failures           int,
    interruptions      int,
    maybe_done         boolean,
    looking_up         boolean,
    not_done_seen      boolean,
    accepted_at        timestamptz NOT NULL,
    lease_until        timestamptz,
    next_attempt_at    timestamptz,
    first_sent_at      timestamptz,
    key_first_used_at  timestamptz,
    attempt_started_at timestamptz,
    last_sent_at       timestamptz,
    settled_at         timestamptz,
    not_before         timestamptz,
    grp                text COLLATE "C" NOT NULL,
    id                 text COLLATE "C" NOT NULL,
    part               text COLLATE "C",
    attempt_by         text,
    receipt            text,
    last_class         text,
    last_error         text,
    origin             text,
    headers            text,
    payload            bytea NOT NULL,
    request            bytea,
    PRIMARY KEY (kind, grp, id),
    CONSTRAINT once_effects_settled CHECK ((settled_at IS NOT NULL) = (state IN (5, 6, 7, 8))),
    CONSTRAINT once_effects_known_state CHECK (state BETWEEN 1 AND 8),
    CONSTRAINT once_effects_lease CHECK ((lease_until IS NOT NULL) = (state = 2)),
    CONSTRAINT once_effects_nothing_denied CHECK (NOT (coalesce(maybe_done, FALSE) AND state IN (1, 3, 6, 8))),
    CONSTRAINT once_effects_payload_size CHECK (length(payload) <= 65536 AND length(request) <= 65536)
) WITH (fillfactor = 45);

-- A row has the ids of effects of one group that are due at the same time. An effect that is not settled is in one row, whose
-- number it has in its column due. at: when they are to be claimed; while they are called, the end of their leases; null: they are
-- parked, because their group is paused. ids: joined by line breaks. Those of a row with calling that have been answered stay in it,
-- and name another number or none.
-- number: random.
CREATE TABLE once_due (
    number  bigint PRIMARY KEY,
    kind    smallint NOT NULL,
    lane    smallint NOT NULL,
    calling boolean NOT NULL,
    at      timestamptz,
    grp     text COLLATE "C" NOT NULL,
    ids     text COLLATE "C" NOT NULL CHECK (ids <> '')
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX once_due_at ON once_due (kind, lane, at);
CREATE INDEX once_due_turn ON once_due ((kind + 0), lane, grp, at);
CREATE INDEX once_due_group ON once_due (kind, grp, number);
CREATE INDEX once_due_calling ON once_due (kind, grp) WHERE calling;
CREATE INDEX once_due_leases ON once_due (at) WHERE calling;
CREATE INDEX once_due_parked ON once_due (kind, grp, number) WHERE at IS NULL;

-- The effects in the rows of once_due, for what reads many.
CREATE VIEW once_due_effects AS
SELECT d.kind, d.lane, d.calling, d.at, d.grp, i.id FROM once_due AS d CROSS JOIN unnest(string_to_array(d.ids, chr(10))) AS i(id)
WHERE NOT d.calling OR EXISTS (SELECT 1 FROM once_effects AS e WHERE e.kind = d.kind AND e.grp = d.grp AND e.id = i.id AND e.due = d.number OFFSET 0);

-- The same, for what reads one by its key.
CREATE VIEW once_effect_due AS
SELECT e.kind, e.grp, e.id, d.calling, d.at FROM once_effects AS e JOIN once_due AS d ON d.number = e.due;

-- One row per ended call, except a first call that ended done: the effect has that one. late: the answer came after
-- another begin.
CREATE TABLE once_attempts (
    kind       smallint NOT NULL,
    grp        text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL,
    late       boolean NOT NULL,
    number     int NOT NULL,
    call       text NOT NULL,
    instance   text NOT NULL,
    started_at timestamptz,
    ended_at   timestamptz NOT NULL,
    outcome    text NOT NULL,
    class      text,
    answer     text,
    status     smallint,
    receipt    text,
    PRIMARY KEY (kind, grp, id, epoch, late)
);

-- The effects that failed (6) or ended unknown (7).
CREATE TABLE once_problems (
    kind  smallint NOT NULL,
    grp   text COLLATE "C" NOT NULL,
    id    text COLLATE "C" NOT NULL,
    state smallint NOT NULL CHECK (state IN (6, 7)),
    at    timestamptz NOT NULL,
    class text NOT NULL,
    PRIMARY KEY (kind, grp, id)
);
CREATE INDEX once_problems_state ON once_problems (state, kind, grp, id);

-- What became of effects of kinds that publish results, until it is published. attempts, receipt, class and error are those of
-- then, because an effect that is replayed ends again. until: an instance has taken the row, and nobody else does before.
-- number: random, because a sequence that is behind its table, as after a move by logical replication, would stop all answers.
CREATE TABLE once_results (
    number   bigint PRIMARY KEY DEFAULT (random() * 9007199254740991)::bigint,
    kind     smallint NOT NULL,
    state    smallint NOT NULL CHECK (state BETWEEN 5 AND 8),
    attempts int NOT NULL,
    tries    int NOT NULL DEFAULT 0,
    at       timestamptz NOT NULL,
    until    timestamptz NOT NULL,
    grp      text COLLATE "C" NOT NULL,
    id       text COLLATE "C" NOT NULL,
    receipt  text,
    class    text,
    error    text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX once_results_until ON once_results (kind, until, number);

-- Counts that are not in once_totals yet. A transaction inserts rows of its own, so none waits for another one here.
-- number is random.
CREATE TABLE once_deltas (
    kind      smallint NOT NULL,
    grp       text COLLATE "C" NOT NULL,
    part      text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    accepted  bigint NOT NULL DEFAULT 0,
    done      bigint NOT NULL DEFAULT 0,
    failed    bigint NOT NULL DEFAULT 0,
    unknown   bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, grp, part, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The row with an empty group counts the whole kind.
CREATE TABLE once_totals (
    kind      smallint NOT NULL,
    grp       text COLLATE "C" NOT NULL,
    part      text COLLATE "C" NOT NULL,
    accepted  bigint NOT NULL,
    done      bigint NOT NULL,
    failed    bigint NOT NULL,
    unknown   bigint NOT NULL,
    cancelled bigint NOT NULL,
    PRIMARY KEY (kind, grp, part)
) WITH (fillfactor = 50);

-- Actions of operators. An empty id: on the whole group; an empty group, too: on the kind.
CREATE TABLE once_audit (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    who     text NOT NULL,
    why     text NOT NULL,
    action  text NOT NULL,
    kind    smallint NOT NULL,
    grp     text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    detail  text NOT NULL,
    db_user text NOT NULL DEFAULT session_user
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
