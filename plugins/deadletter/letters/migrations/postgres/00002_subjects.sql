-- +goose Up

-- The letters about a payout, for who settles it otherwise.
CREATE INDEX dead_letters_subject ON dead_letters (subject, seq) WHERE subject <> '';

-- +goose Down
DROP INDEX dead_letters_subject;
