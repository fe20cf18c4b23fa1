-- +goose Up

-- The version before may run on these tables.

-- Begins and accepts hold the lock of the promotion in shared mode while they read its state. Each
-- change of the state takes it exclusively, also one by psql or by an older version.
-- +goose StatementBegin
CREATE FUNCTION promotions_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1296650049, hashtext(TG_TABLE_SCHEMA || '/' || NEW.type || '/' || NEW.promotion_id));
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER promotions_gate BEFORE UPDATE OF state ON promotions FOR EACH ROW EXECUTE FUNCTION promotions_gate();

-- +goose Down
DROP TRIGGER promotions_gate ON promotions;
DROP FUNCTION promotions_gate();
