-- +goose Up

-- The use of an action: the same for all dead letters that one click or command replays or discards, and for a second
-- click. The version before leaves it empty, so the index is on those that have one. A use that was interrupted gives
-- its dead letters up to the next attempt, whose rows then have it.
ALTER TABLE dead_letter_actions ADD COLUMN used text;
CREATE UNIQUE INDEX dead_letter_actions_used ON dead_letter_actions (dead_letter, used) WHERE used IS NOT NULL;

-- +goose Down
DROP INDEX dead_letter_actions_used;
ALTER TABLE dead_letter_actions DROP COLUMN used;
