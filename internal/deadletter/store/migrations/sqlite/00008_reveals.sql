-- +goose Up

-- The action reveal: a person saw what the console masks of a dead letter. SQLite can't change a CHECK, so the table
-- is made again, with the ids that dead_letters.held_by has. The version before only shows the new rows.
CREATE TABLE dead_letter_actions_8 (
    id         INTEGER     PRIMARY KEY AUTOINCREMENT,
    dead_letter TEXT       NOT NULL,
    generation INTEGER     NOT NULL,
    action     TEXT        NOT NULL CHECK (action IN ('replay', 'discard', 'return', 'reveal')),
    who        TEXT        NOT NULL,
    why        TEXT        NOT NULL,
    at         INTEGER     NOT NULL,
    outcome    TEXT        NOT NULL,
    detail     TEXT        NOT NULL,
    arrival    TEXT        UNIQUE,
    used       TEXT
);
INSERT INTO dead_letter_actions_8 (id, dead_letter, generation, action, who, why, at, outcome, detail, arrival, used)
    SELECT id, dead_letter, generation, action, who, why, at, outcome, detail, arrival, used FROM dead_letter_actions;
-- An id is never given again, also when the newest rows were pruned.
DELETE FROM sqlite_sequence WHERE name = 'dead_letter_actions_8';
INSERT INTO sqlite_sequence (name, seq) SELECT 'dead_letter_actions_8', seq FROM sqlite_sequence WHERE name = 'dead_letter_actions';
DROP TABLE dead_letter_actions;
ALTER TABLE dead_letter_actions_8 RENAME TO dead_letter_actions;
CREATE INDEX dead_letter_actions_dead_letter ON dead_letter_actions (dead_letter, id);
CREATE UNIQUE INDEX dead_letter_actions_once ON dead_letter_actions (dead_letter, generation) WHERE action = 'replay' AND outcome = 'replayed';
CREATE UNIQUE INDEX dead_letter_actions_used ON dead_letter_actions (dead_letter, used) WHERE used IS NOT NULL;

-- +goose Down
-- The table keeps its wider CHECK, which the version before does not notice.
DELETE FROM dead_letter_actions WHERE action = 'reveal';
