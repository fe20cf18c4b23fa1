-- +goose Up

-- One row per payout. The CHECKs are the last defence against a wrong transition.
CREATE TABLE payouts (
    type               text        NOT NULL,
    promotion_id       bigint      NOT NULL,
    target_id          bigint      NOT NULL,
    id                 bigint      GENERATED ALWAYS AS IDENTITY,
    summary_id         bigint      NOT NULL,
    state              text        NOT NULL,
    hint               text        NOT NULL,
    hint_due           timestamptz NOT NULL,
    version           bigint      NOT NULL,
    epoch              bigint      NOT NULL DEFAULT 0,
    attempts           integer     NOT NULL DEFAULT 0,
    asks               integer     NOT NULL DEFAULT 0,
    failures           integer     NOT NULL DEFAULT 0,
    interruptions      integer     NOT NULL DEFAULT 0,
    lease_until        timestamptz,
    next_attempt_at    timestamptz,
    first_sent_at      timestamptz,
    maybe_charged      boolean     NOT NULL DEFAULT FALSE,
    asking             boolean     NOT NULL DEFAULT FALSE,
    transaction_key    text        NOT NULL DEFAULT '',
    last_class         text        NOT NULL DEFAULT '',
    last_error         text        NOT NULL DEFAULT '',
    attempt_started_at timestamptz,
    attempt_by         text        NOT NULL DEFAULT '',
    accepted_at        timestamptz NOT NULL,
    settled_at         timestamptz,
    payload            bytea       NOT NULL,
    request            bytea,
    headers            text        NOT NULL DEFAULT '',
    record_key         bytea,
    origin             text        NOT NULL DEFAULT '',
    CONSTRAINT payouts_pkey PRIMARY KEY (type, promotion_id, target_id),
    CONSTRAINT payouts_id_key UNIQUE (id),
    CONSTRAINT payouts_settled CHECK ((settled_at IS NOT NULL) = (state IN ('SUCCESS', 'FAILED', 'UNKNOWN', 'CANCELLED'))),
    CONSTRAINT payouts_known_state CHECK (settled_at IS NOT NULL OR state IN ('PENDING', 'SENDING', 'ERROR', 'AMBIGUOUS')),
    CONSTRAINT payouts_no_charge_denied CHECK (NOT (maybe_charged AND state IN ('FAILED', 'CANCELLED', 'ERROR', 'PENDING'))),
    CONSTRAINT payouts_hint CHECK (hint IN ('none', 'stream', 'retry')),
    CONSTRAINT payouts_payload_size CHECK (octet_length(payload) <= 8388608)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- The queries of the feeder read this index in its order. It has no settled payouts.
CREATE INDEX payouts_unsettled ON payouts (type, promotion_id, hint, hint_due, id) WHERE settled_at IS NULL;

-- A begin reads the state, and never waits for a settle.
CREATE TABLE promotions (
    type         text        NOT NULL,
    promotion_id bigint      NOT NULL,
    state        text        NOT NULL CHECK (state IN ('RUNNING', 'PAUSED', 'CANCELLED')),
    created_at   timestamptz NOT NULL,
    changed_at   timestamptz NOT NULL,
    PRIMARY KEY (type, promotion_id)
);

-- The streams, and the instance that feeds each.
CREATE TABLE promotion_streams (
    type         text    NOT NULL,
    promotion_id bigint  NOT NULL,
    active       boolean NOT NULL,
    inactive_since timestamptz,
    incarnation  text    NOT NULL DEFAULT '',
    total_count  bigint  NOT NULL DEFAULT 0,
    feeder       text    NOT NULL DEFAULT '',
    feeder_until timestamptz,
    PRIMARY KEY (type, promotion_id)
);
CREATE INDEX promotion_streams_active ON promotion_streams (type, promotion_id) WHERE active;

-- Settled payouts, counted in the transactions that settle them.
CREATE TABLE promotion_summaries (
    type         text   NOT NULL,
    promotion_id bigint NOT NULL,
    summary_id   bigint NOT NULL,
    paid         bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    unknown      bigint NOT NULL DEFAULT 0,
    cancelled    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (type, promotion_id, summary_id)
) WITH (fillfactor = 50);

-- One row per ended call. late: the answer came after another begin.
CREATE TABLE attempts (
    payout_id   bigint      NOT NULL,
    epoch       bigint      NOT NULL,
    late        boolean     NOT NULL,
    attempt     integer     NOT NULL,
    kind        text        NOT NULL,
    instance    text        NOT NULL,
    started_at  timestamptz,
    ended_at    timestamptz NOT NULL,
    outcome     text        NOT NULL,
    class       text        NOT NULL,
    answer      text        NOT NULL,
    http_status integer     NOT NULL,
    PRIMARY KEY (payout_id, epoch, late)
);

-- Messages to publish. Published dead letters stay, because they are counted. Published outcome events are deleted.
CREATE TABLE outbox (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind            text        NOT NULL CHECK (kind IN ('dead', 'result')),
    type            text        NOT NULL,
    promotion_id    bigint      NOT NULL,
    target_id       bigint      NOT NULL,
    class           text        NOT NULL,
    error           text        NOT NULL,
    payload         bytea       NOT NULL,
    headers         text        NOT NULL,
    record_key      bytea,
    origin          text        NOT NULL,
    handler         text        NOT NULL,
    attempts        integer     NOT NULL,
    first_failed_at timestamptz,
    created_at      timestamptz NOT NULL,
    dedupe          text        UNIQUE,
    tries           integer     NOT NULL DEFAULT 0,
    claimed_until   timestamptz,
    published_at    timestamptz
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
