-- +goose Up
ALTER TABLE owners
    ADD COLUMN limit_own     boolean NOT NULL DEFAULT false,
    ADD COLUMN monthly_limit bigint CHECK (monthly_limit >= 0),
    ADD CONSTRAINT owners_limit CHECK (limit_own OR monthly_limit IS NULL);
COMMENT ON COLUMN owners.limit_own IS 'false: the configured limit holds; true: monthly_limit does';
COMMENT ON COLUMN owners.monthly_limit IS 'Billionths of a US dollar, as all amounts; NULL: none';

ALTER TABLE turns
    ADD COLUMN cached_tokens    bigint NOT NULL DEFAULT 0,
    ADD COLUMN reasoning_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN cost             bigint NOT NULL DEFAULT 0;
UPDATE turns SET cost = round(cost_usd * 1e9) WHERE cost_usd <> 0;
ALTER TABLE turns DROP COLUMN cost_usd;
COMMENT ON COLUMN turns.cost IS 'With the token counts: the sums over the turn''s calls in the ledger, kept in step in the same transactions';

CREATE TABLE spending (
    owner_id text NOT NULL REFERENCES owners,
    month    date NOT NULL CHECK (extract(day FROM month) = 1),
    spent    bigint NOT NULL DEFAULT 0 CHECK (spent >= 0),
    reserved bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    PRIMARY KEY (owner_id, month)
);
COMMENT ON TABLE spending IS 'What an owner''s model calls of a month (UTC) came to, and what those under way may cost. Locked last';

CREATE TABLE ledger (
    id               text PRIMARY KEY,
    owner_id         text NOT NULL REFERENCES owners,
    thread_id        text NOT NULL REFERENCES threads,
    turn_id          text NOT NULL REFERENCES turns,
    round            integer NOT NULL CHECK (round > 0),
    attempt          integer NOT NULL CHECK (attempt >= 0),
    month            date NOT NULL,
    model            text NOT NULL,
    state            text NOT NULL CHECK (state IN ('reserved', 'settled', 'released')),
    outcome          text CHECK (outcome IN ('ok', 'failed', 'stopped', 'lost')),
    estimated        boolean NOT NULL DEFAULT false,
    reserved         bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    input_tokens     bigint NOT NULL DEFAULT 0 CHECK (input_tokens >= 0),
    cached_tokens    bigint NOT NULL DEFAULT 0 CHECK (cached_tokens >= 0),
    output_tokens    bigint NOT NULL DEFAULT 0 CHECK (output_tokens >= 0),
    reasoning_tokens bigint NOT NULL DEFAULT 0 CHECK (reasoning_tokens >= 0),
    cost             bigint NOT NULL DEFAULT 0 CHECK (cost >= 0),
    created_at       timestamptz NOT NULL,
    settled_at       timestamptz,
    CHECK ((outcome IS NOT NULL) = (state = 'settled')),
    CHECK ((settled_at IS NULL) = (state = 'reserved'))
);
COMMENT ON TABLE ledger IS 'Each model call once';
COMMENT ON COLUMN ledger.attempt IS 'Of the turn''s model attempts, as its deltas carry it';
COMMENT ON COLUMN ledger.month IS 'Whose spending it counts in: that of the reservation, else of the settling';
COMMENT ON COLUMN ledger.state IS 'reserved: under way. input_tokens and cost are then what it is estimated to read; they count once it is settled';
COMMENT ON COLUMN ledger.outcome IS 'lost: its worker died; should it live and settle after all, what it says counts';
COMMENT ON COLUMN ledger.reserved IS 'What was set aside for it; 0 where no limit held';
CREATE INDEX ledger_open ON ledger (turn_id) WHERE state = 'reserved';
CREATE INDEX ledger_month ON ledger (owner_id, month);

-- +goose Down
DROP TABLE ledger, spending;
ALTER TABLE turns ADD COLUMN cost_usd double precision NOT NULL DEFAULT 0;
UPDATE turns SET cost_usd = cost / 1e9 WHERE cost <> 0;
ALTER TABLE turns DROP COLUMN cost, DROP COLUMN reasoning_tokens, DROP COLUMN cached_tokens;
ALTER TABLE owners DROP CONSTRAINT owners_limit, DROP COLUMN monthly_limit, DROP COLUMN limit_own;
