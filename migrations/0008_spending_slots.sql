-- +goose Up
-- All rounds of an owner wrote to one row and so committed one after the other.
CREATE TABLE spending_slots (
    owner_id text NOT NULL REFERENCES owners,
    month    date NOT NULL CHECK (extract(day FROM month) = 1),
    slot     smallint NOT NULL CHECK (slot >= 0),
    spent    bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (owner_id, month, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE spending_slots IS 'What an owner''s model calls of a month came to, and what those under way may cost: the sums over these rows and the one in spending. Locked last';
COMMENT ON COLUMN spending_slots.slot IS 'From the turn''s id, so that turns of one owner seldom meet in a row';
COMMENT ON COLUMN spending_slots.reserved IS 'A term of the sum, as spent; below 0 where a call was reserved in spending and settled here';

-- What is here stays and counts. Processes of the version before write to it as long as they run.
ALTER TABLE spending DROP CONSTRAINT spending_spent_check, DROP CONSTRAINT spending_reserved_check;
COMMENT ON TABLE spending IS 'The row that reservations of an owner and month lock, one after the other. Its amounts are those from before there were slots';

-- +goose Down
INSERT INTO spending AS s (owner_id, month, spent, reserved)
SELECT owner_id, month, sum(spent), sum(reserved)
FROM spending_slots
GROUP BY owner_id, month
ON CONFLICT (owner_id, month) DO UPDATE SET spent = s.spent + EXCLUDED.spent, reserved = s.reserved + EXCLUDED.reserved;
DROP TABLE spending_slots;
ALTER TABLE spending
    ADD CONSTRAINT spending_spent_check CHECK (spent >= 0),
    ADD CONSTRAINT spending_reserved_check CHECK (reserved >= 0);
COMMENT ON TABLE spending IS 'What an owner''s model calls of a month (UTC) came to, and what those under way may cost. Locked last';
