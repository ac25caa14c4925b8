-- +goose Up
CREATE TABLE summaries (
    session_id    text NOT NULL,
    n             integer NOT NULL CHECK (n > 0),
    upto          bigint NOT NULL CHECK (upto >= -1),
    history_upto  bigint NOT NULL DEFAULT -1 CHECK (history_upto >= -1),
    base          bigint NOT NULL CHECK (base >= upto),
    text          text NOT NULL,
    turn_id       text NOT NULL REFERENCES turns,
    step          integer NOT NULL,
    model         text NOT NULL,
    entries       integer NOT NULL CHECK (entries > 0),
    tokens        bigint NOT NULL CHECK (tokens >= 0),
    input_tokens  bigint NOT NULL DEFAULT 0 CHECK (input_tokens >= 0),
    output_tokens bigint NOT NULL DEFAULT 0 CHECK (output_tokens >= 0),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_id, n),
    FOREIGN KEY (turn_id, step) REFERENCES steps
);
COMMENT ON TABLE summaries IS 'What the model is shown in place of the older part of a session; the newest counts, and the entries stay';
COMMENT ON COLUMN summaries.n IS 'From 1; each is made from the one before it and what followed, so that two holders of a turn make it once';
COMMENT ON COLUMN summaries.upto IS 'Last position of the session that it stands for; -1: none';
COMMENT ON COLUMN summaries.history_upto IS 'Of a background turn''s session: last position of the conversation that it stands for; -1: none';
COMMENT ON COLUMN summaries.base IS 'The session''s end when it was written: rounds before it were counted without it';
COMMENT ON COLUMN summaries.model IS 'That wrote it; empty: no model could, and it only names what was left out';
COMMENT ON COLUMN summaries.tokens IS 'Estimate of the entries that it was made from';
CREATE INDEX summaries_upto ON summaries (session_id, upto);

-- What was asked in a turn, which the model is shown word for word however old it is.
CREATE INDEX entries_asked ON entries (turn_id, pos) WHERE round = 0 AND kind IN ('user', 'note');

ALTER TABLE turns
    ADD COLUMN refused_tokens bigint NOT NULL DEFAULT 0 CHECK (refused_tokens >= 0),
    ADD COLUMN summary_failed boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN turns.refused_tokens IS 'Estimate of the prompt that the provider refused as too long; 0: none since the last loaded message';
COMMENT ON COLUMN turns.summary_failed IS 'No summary could be had since the last loaded message, so none is asked for';

-- +goose Down
ALTER TABLE turns DROP COLUMN refused_tokens, DROP COLUMN summary_failed;
DROP INDEX entries_asked;
DROP TABLE summaries;
