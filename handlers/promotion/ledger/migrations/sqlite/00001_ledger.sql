-- +goose Up

-- The same tables as PostgreSQL's; times are microseconds since 1970, UTC.

-- One row per payout. The CHECKs are the last defence against a wrong transition.
CREATE TABLE payouts (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    type               TEXT    NOT NULL,
    promotion_id       INTEGER NOT NULL,
    target_id          INTEGER NOT NULL,
    summary_id         INTEGER NOT NULL,
    state              TEXT    NOT NULL,
    hint               TEXT    NOT NULL,
    hint_due           INTEGER NOT NULL,
    version           INTEGER NOT NULL,
    epoch              INTEGER NOT NULL DEFAULT 0,
    attempts           INTEGER NOT NULL DEFAULT 0,
    asks               INTEGER NOT NULL DEFAULT 0,
    failures           INTEGER NOT NULL DEFAULT 0,
    interruptions      INTEGER NOT NULL DEFAULT 0,
    lease_until        INTEGER,
    next_attempt_at    INTEGER,
    first_sent_at      INTEGER,
    maybe_charged      INTEGER NOT NULL DEFAULT FALSE,
    asking             INTEGER NOT NULL DEFAULT FALSE,
    transaction_key    TEXT    NOT NULL DEFAULT '',
    last_class         TEXT    NOT NULL DEFAULT '',
    last_error         TEXT    NOT NULL DEFAULT '',
    attempt_started_at INTEGER,
    attempt_by         TEXT    NOT NULL DEFAULT '',
    accepted_at        INTEGER NOT NULL,
    settled_at         INTEGER,
    payload            BLOB    NOT NULL,
    request            BLOB   ,
    headers            TEXT    NOT NULL DEFAULT '',
    record_key         BLOB   ,
    origin             TEXT    NOT NULL DEFAULT '',
    CONSTRAINT payouts_pkey UNIQUE (type, promotion_id, target_id),
    CONSTRAINT payouts_settled CHECK ((settled_at IS NOT NULL) = (state IN ('SUCCESS', 'FAILED', 'UNKNOWN', 'CANCELLED'))),
    CONSTRAINT payouts_known_state CHECK (settled_at IS NOT NULL OR state IN ('PENDING', 'SENDING', 'ERROR', 'AMBIGUOUS')),
    CONSTRAINT payouts_no_charge_denied CHECK (NOT (maybe_charged AND state IN ('FAILED', 'CANCELLED', 'ERROR', 'PENDING'))),
    CONSTRAINT payouts_hint CHECK (hint IN ('none', 'stream', 'retry')),
    CONSTRAINT payouts_payload_size CHECK (length(payload) <= 8388608)
);

-- The queries of the feeder read this index in its order. It has no settled payouts.
CREATE INDEX payouts_unsettled ON payouts (type, promotion_id, hint, hint_due, id) WHERE settled_at IS NULL;

-- A begin reads the state, and never waits for a settle.
CREATE TABLE promotions (
    type               TEXT    NOT NULL,
    promotion_id       INTEGER NOT NULL,
    state              TEXT    NOT NULL CHECK (state IN ('RUNNING', 'PAUSED', 'CANCELLED')),
    created_at         INTEGER NOT NULL,
    changed_at         INTEGER NOT NULL,
    PRIMARY KEY (type, promotion_id)
);

-- The streams, and the instance that feeds each.
CREATE TABLE promotion_streams (
    type               TEXT    NOT NULL,
    promotion_id       INTEGER NOT NULL,
    active             INTEGER NOT NULL,
    inactive_since     INTEGER,
    incarnation        TEXT    NOT NULL DEFAULT '',
    total_count        INTEGER NOT NULL DEFAULT 0,
    feeder             TEXT    NOT NULL DEFAULT '',
    feeder_until       INTEGER,
    PRIMARY KEY (type, promotion_id)
);
CREATE INDEX promotion_streams_active ON promotion_streams (type, promotion_id) WHERE active;

-- Settled payouts, counted in the transactions that settle them.
CREATE TABLE promotion_summaries (
    type               TEXT    NOT NULL,
    promotion_id       INTEGER NOT NULL,
    summary_id         INTEGER NOT NULL,
    paid               INTEGER NOT NULL DEFAULT 0,
    failed             INTEGER NOT NULL DEFAULT 0,
    unknown            INTEGER NOT NULL DEFAULT 0,
    cancelled          INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (type, promotion_id, summary_id)
);

-- One row per ended call. late: the answer came after another begin.
CREATE TABLE attempts (
    payout_id          INTEGER NOT NULL,
    epoch              INTEGER NOT NULL,
    late               INTEGER NOT NULL,
    attempt            INTEGER NOT NULL,
    kind               TEXT    NOT NULL,
    instance           TEXT    NOT NULL,
    started_at         INTEGER,
    ended_at           INTEGER NOT NULL,
    outcome            TEXT    NOT NULL,
    class              TEXT    NOT NULL,
    answer             TEXT    NOT NULL,
    http_status        INTEGER NOT NULL,
    PRIMARY KEY (payout_id, epoch, late)
);

-- Messages to publish. Published dead letters stay, because they are counted. Published outcome events are deleted.
CREATE TABLE outbox (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    kind               TEXT    NOT NULL CHECK (kind IN ('dead', 'result')),
    type               TEXT    NOT NULL,
    promotion_id       INTEGER NOT NULL,
    target_id          INTEGER NOT NULL,
    class              TEXT    NOT NULL,
    error              TEXT    NOT NULL,
    payload            BLOB    NOT NULL,
    headers            TEXT    NOT NULL,
    record_key         BLOB   ,
    origin             TEXT    NOT NULL,
    handler            TEXT    NOT NULL,
    attempts           INTEGER NOT NULL,
    first_failed_at    INTEGER,
    created_at         INTEGER NOT NULL,
    dedupe             TEXT    UNIQUE,
    tries              INTEGER NOT NULL DEFAULT 0,
    claimed_until      INTEGER,
    published_at       INTEGER
);
CREATE INDEX outbox_unpublished ON outbox (kind, id) WHERE published_at IS NULL;
CREATE INDEX outbox_dead ON outbox (type, promotion_id, target_id) WHERE kind = 'dead';

-- +goose Down
DROP TABLE outbox;
DROP TABLE attempts;
DROP TABLE promotion_summaries;
DROP TABLE promotion_streams;
DROP TABLE promotions;
DROP TABLE payouts;
