-- +goose Up

-- Versions without leases take this lock to replay or discard. None gets it any more, and one that holds it loses it:
-- it would ignore the leases.
UPDATE dead_letter_lock SET holder = 'a newer version of millrace, use that one', held_until = 9223372036854775807 WHERE name = 'work';

-- While a replay works on a dead letter, it holds it until this time. held_by is the action of that replay.
ALTER TABLE dead_letters ADD COLUMN held_by INTEGER;
ALTER TABLE dead_letters ADD COLUMN held_until INTEGER;

-- A replay of such a version may still work on these, for at most 15 seconds.
UPDATE dead_letters SET held_until = (unixepoch('now') + 16) * 1000000 WHERE state = 'replaying';

-- +goose Down
ALTER TABLE dead_letters DROP COLUMN held_until;
ALTER TABLE dead_letters DROP COLUMN held_by;
UPDATE dead_letter_lock SET holder = '', held_until = NULL WHERE name = 'work';
