-- +goose Up

-- The action reveal: a person saw what the console masks of a dead letter. The version before only shows the new
-- rows. All rows met the narrower CHECK, so they are not checked again while the table is locked.
ALTER TABLE dead_letter_actions DROP CONSTRAINT dead_letter_actions_action_check;
ALTER TABLE dead_letter_actions ADD CONSTRAINT dead_letter_actions_action_check
    CHECK (action IN ('replay', 'discard', 'return', 'reveal')) NOT VALID;

-- +goose Down
DELETE FROM dead_letter_actions WHERE action = 'reveal';
ALTER TABLE dead_letter_actions DROP CONSTRAINT dead_letter_actions_action_check;
ALTER TABLE dead_letter_actions ADD CONSTRAINT dead_letter_actions_action_check
    CHECK (action IN ('replay', 'discard', 'return')) NOT VALID;
