-- +goose Up
ALTER TABLE turns ADD COLUMN trace text NOT NULL DEFAULT '' CHECK (length(trace) <= 100);
COMMENT ON COLUMN turns.trace IS 'W3C traceparent of what made the turn, so that each of its stints goes on in the same trace; empty: nothing was traced';

-- +goose Down
ALTER TABLE turns DROP COLUMN trace;
