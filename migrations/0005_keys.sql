-- +goose Up
ALTER TABLE api_keys ADD COLUMN last_used_at timestamptz;
COMMENT ON COLUMN api_keys.last_used_at IS 'To the minute or so: written when a key is looked up, at most once a minute';
CREATE INDEX api_keys_owner ON api_keys (owner_id, id);

CREATE TABLE repeats (
    owner_id   text NOT NULL REFERENCES owners,
    key        text NOT NULL CHECK (key <> ''),
    asked      text NOT NULL,
    answer     json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (owner_id, key)
);
COMMENT ON TABLE repeats IS 'What a stop, a reset or a withdrawal gave back under which idempotency key; messages have deliveries';
COMMENT ON COLUMN repeats.asked IS 'Operation and address, so that a key used for something else is refused';

-- +goose Down
DROP TABLE repeats;
DROP INDEX api_keys_owner;
ALTER TABLE api_keys DROP COLUMN last_used_at;
