-- +goose Up

-- Finds the dead letters about a payout.
CREATE INDEX dead_letters_subject ON dead_letters (subject, seq) WHERE subject <> '';

-- +goose Down
DROP INDEX dead_letters_subject;
