-- +goose Up
-- Idempotency keys that are older than the retention are found by their age.
CREATE INDEX deliveries_age ON deliveries (created_at);
CREATE INDEX repeats_age ON repeats (created_at);

-- +goose Down
DROP INDEX deliveries_age, repeats_age;
