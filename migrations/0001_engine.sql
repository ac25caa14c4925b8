-- +goose Up
CREATE TABLE owners (
    id         text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE api_keys (
    id         text PRIMARY KEY,
    owner_id   text NOT NULL REFERENCES owners,
    name       text NOT NULL,
    hash       bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);
COMMENT ON COLUMN api_keys.hash IS 'SHA-256 of the key; keys carry 256 random bits, so no slow hash is needed';

CREATE TABLE threads (
    id          text PRIMARY KEY,
    owner_id    text NOT NULL REFERENCES owners,
    title       text NOT NULL DEFAULT '',
    home        boolean NOT NULL DEFAULT false,
    status      text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    archived_at timestamptz,
    CHECK ((status = 'archived') = (archived_at IS NOT NULL))
);
CREATE UNIQUE INDEX threads_home ON threads (owner_id) WHERE home AND status = 'active';
CREATE INDEX threads_owner ON threads (owner_id, id);

CREATE TABLE turns (
    id            text PRIMARY KEY,
    thread_id     text NOT NULL REFERENCES threads,
    source        text NOT NULL CHECK (source IN ('user', 'schedule', 'event', 'resume')),
    kind          text NOT NULL CHECK (kind IN ('conversation', 'background')),
    mode          text NOT NULL CHECK (mode IN ('chat', 'deep_research')),
    status        text NOT NULL CHECK (status IN ('queued', 'running', 'waiting', 'succeeded', 'failed', 'cancelled')),
    rank          bigint NOT NULL,
    follow_up_of  text REFERENCES turns,
    reply_channel text NOT NULL,
    created_at    timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz,
    driven_at     timestamptz NOT NULL,

    attempt       integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures      integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    retry_at      timestamptz,
    urgent        boolean NOT NULL DEFAULT false,
    barren        integer NOT NULL DEFAULT 0 CHECK (barren >= 0),
    stopping      boolean NOT NULL DEFAULT false,
    history_end   bigint NOT NULL DEFAULT -1,

    rounds        integer NOT NULL DEFAULT 0,
    tool_calls    integer NOT NULL DEFAULT 0,
    steps         integer NOT NULL DEFAULT 0,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    cost_usd      double precision NOT NULL DEFAULT 0,

    limit_since       timestamptz,
    limit_rounds      integer NOT NULL DEFAULT 0,
    limit_tool_calls  integer NOT NULL DEFAULT 0,
    empty_retries     integer NOT NULL DEFAULT 0,
    malformed_retries integer NOT NULL DEFAULT 0,
    tool_failures     jsonb NOT NULL DEFAULT '{}',
    wrap_up_warned    boolean NOT NULL DEFAULT false,
    model_failures    integer NOT NULL DEFAULT 0,
    model_attempts    integer NOT NULL DEFAULT 0,

    answer_id    text,
    next_turn_id text REFERENCES turns,
    error_code   text,
    error_detail text,

    CHECK ((finished_at IS NOT NULL) = (status IN ('waiting', 'succeeded', 'failed', 'cancelled'))),
    CHECK (status <> 'running' OR started_at IS NOT NULL),
    CHECK (retry_at IS NULL OR status = 'queued'),
    CHECK ((error_code IS NULL) = (error_detail IS NULL))
);
COMMENT ON COLUMN turns.rank IS 'Order among the waiting conversation turns of a thread, smallest first';
COMMENT ON COLUMN turns.driven_at IS 'Last time a worker or the API moved this turn; the sweep looks at turns that nobody moved';
COMMENT ON COLUMN turns.attempt IS 'How often it was claimed, so that the late end of an earlier attempt ends nothing';
COMMENT ON COLUMN turns.failures IS 'Since it was made or replayed; the retry policy counts them';
COMMENT ON COLUMN turns.urgent IS 'An interrupt made it: the next interrupt goes behind it, ahead of the others';
COMMENT ON COLUMN turns.barren IS 'Stints in a row that wrote nothing: a turn that gets nowhere is ended, not driven for ever';
COMMENT ON COLUMN turns.stopping IS 'A background turn''s stop flag; a conversation turn''s is on the run row';
COMMENT ON COLUMN turns.history_end IS 'Last position of the conversation that a background turn is shown; -1: none';
COMMENT ON COLUMN turns.limit_since IS 'The limit_ columns and those below count from here: the claim, or the last loaded message';
COMMENT ON COLUMN turns.model_failures IS 'Failed model calls of the round under way, so that another stint goes on counting';
COMMENT ON COLUMN turns.model_attempts IS 'Grows with each stint and each failed model call: deltas of another attempt are refused';
COMMENT ON COLUMN turns.next_turn_id IS 'The turn that this one''s end claimed, so that a repeated end returns the same';
-- Ranks are given out under the run row's lock, so a thread's waiting turns never share one.
CREATE UNIQUE INDEX turns_waiting ON turns (thread_id, rank) WHERE kind = 'conversation' AND status = 'queued';
CREATE UNIQUE INDEX turns_running ON turns (thread_id) WHERE kind = 'conversation' AND status = 'running';
CREATE INDEX turns_background ON turns (thread_id) WHERE kind = 'background' AND status IN ('queued', 'running');
CREATE INDEX turns_live ON turns (driven_at) WHERE status IN ('queued', 'running');
CREATE INDEX turns_thread ON turns (thread_id, id);

CREATE TABLE runs (
    thread_id text PRIMARY KEY REFERENCES threads,
    turn_id   text REFERENCES turns,
    stopping  boolean NOT NULL DEFAULT false,
    CHECK (turn_id IS NOT NULL OR NOT stopping)
);
COMMENT ON TABLE runs IS 'The run row: names the conversation turn that runs. Always locked before the steering row';

CREATE TABLE messages (
    id          text PRIMARY KEY,
    thread_id   text NOT NULL REFERENCES threads,
    turn_id     text REFERENCES turns,
    role        text NOT NULL CHECK (role IN ('user', 'assistant', 'notice')),
    state       text NOT NULL CHECK (state IN ('queued', 'delivered', 'withdrawn')),
    channel     text NOT NULL,
    text        text NOT NULL,
    reply_to    text,
    stopped     boolean NOT NULL DEFAULT false,
    seq         bigint,
    created_at  timestamptz NOT NULL,
    CHECK ((state = 'delivered') = (seq IS NOT NULL)),
    CHECK (role = 'user' OR state = 'delivered')
);
COMMENT ON COLUMN messages.seq IS 'Sequence number of the event that gave it its place: the order the model received';
CREATE UNIQUE INDEX messages_seq ON messages (thread_id, seq);
CREATE INDEX messages_waiting ON messages (thread_id) WHERE state = 'queued';
CREATE INDEX messages_turn ON messages (turn_id);

CREATE TABLE message_parts (
    message_id text NOT NULL REFERENCES messages,
    n          integer NOT NULL CHECK (n > 0),
    text       text NOT NULL,
    client_id  text,
    sent_at    timestamptz NOT NULL,
    PRIMARY KEY (message_id, n)
);

CREATE TABLE message_attachments (
    message_id text NOT NULL REFERENCES messages,
    file_id    text NOT NULL,
    n          integer NOT NULL,
    PRIMARY KEY (message_id, file_id)
);

CREATE TABLE message_mentions (
    message_id text NOT NULL REFERENCES messages,
    target     text NOT NULL,
    n          integer NOT NULL,
    PRIMARY KEY (message_id, target)
);

CREATE TABLE deliveries (
    owner_id    text NOT NULL REFERENCES owners,
    channel     text NOT NULL,
    key         text NOT NULL,
    fingerprint bytea NOT NULL,
    message_id  text NOT NULL REFERENCES messages,
    turn_id     text NOT NULL REFERENCES turns,
    disposition text NOT NULL CHECK (disposition IN ('turn', 'steering', 'queued')),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (owner_id, channel, key)
);
COMMENT ON TABLE deliveries IS 'What was accepted under which idempotency key or channel message id';
COMMENT ON COLUMN deliveries.fingerprint IS 'SHA-256 of what was sent, so that a key used for another message is refused, not lost';

CREATE TABLE steering (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread_id  text NOT NULL REFERENCES threads,
    message_id text NOT NULL UNIQUE REFERENCES messages,
    state      text NOT NULL CHECK (state IN ('queued', 'delivered', 'withdrawn', 'moved')),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at timestamptz,
    CHECK ((state = 'queued') = (settled_at IS NULL))
);
COMMENT ON TABLE steering IS 'The steering row: the message that waits to be loaded into the running turn';
COMMENT ON COLUMN steering.state IS 'moved: it became the request of a turn of its own';
CREATE UNIQUE INDEX steering_queued ON steering (thread_id) WHERE state = 'queued';
CREATE INDEX steering_thread ON steering (thread_id, id);

CREATE TABLE entries (
    session_id text NOT NULL,
    pos        bigint NOT NULL CHECK (pos >= 0),
    kind       text NOT NULL CHECK (kind IN ('user', 'assistant', 'note')),
    turn_id    text NOT NULL REFERENCES turns,
    round      integer NOT NULL DEFAULT 0,
    message_id text REFERENCES messages,
    text       text NOT NULL,
    reasoning  text NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, pos)
);
COMMENT ON TABLE entries IS 'The session that the model is shown; a tool call and its result are read from calls, beside the entry of their round';
COMMENT ON COLUMN entries.session_id IS 'The thread, or a background turn that has a session of its own';

CREATE TABLE rounds (
    turn_id       text NOT NULL REFERENCES turns,
    n             integer NOT NULL CHECK (n > 0),
    outcome       text NOT NULL CHECK (outcome IN ('calls', 'answer', 'empty', 'malformed')),
    entry_pos     bigint,
    model         text NOT NULL,
    finish        text NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    attempts      integer NOT NULL,
    finished_at   timestamptz NOT NULL,
    PRIMARY KEY (turn_id, n),
    CHECK ((entry_pos IS NOT NULL) = (outcome IN ('calls', 'answer')))
);
COMMENT ON TABLE rounds IS 'The step log: each round once';

CREATE TABLE calls (
    turn_id      text NOT NULL,
    round        integer NOT NULL,
    idx          integer NOT NULL CHECK (idx >= 0),
    provider_id  text NOT NULL,
    name         text NOT NULL,
    arguments    text NOT NULL,
    side_effects boolean NOT NULL,
    state        text NOT NULL CHECK (state IN ('pending', 'started', 'succeeded', 'failed', 'interrupted')),
    result       text,
    step         integer NOT NULL,
    worker_id    text,
    started_at   timestamptz,
    finished_at  timestamptz,
    PRIMARY KEY (turn_id, round, idx),
    FOREIGN KEY (turn_id, round) REFERENCES rounds (turn_id, n),
    CHECK ((result IS NULL) = (state IN ('pending', 'started'))),
    CHECK (state <> 'started' OR started_at IS NOT NULL AND worker_id IS NOT NULL)
);
COMMENT ON COLUMN calls.worker_id IS 'The worker that started a call with side effects: while it lives the outcome may still come';
COMMENT ON TABLE calls IS 'The step log: each tool call once, and its result once';

CREATE TABLE steps (
    turn_id     text NOT NULL REFERENCES turns,
    n           integer NOT NULL CHECK (n > 0),
    kind        text NOT NULL CHECK (kind IN ('reasoning', 'tool', 'boundary', 'plan', 'note')),
    title       text NOT NULL,
    status      text NOT NULL CHECK (status IN ('running', 'done', 'failed', 'interrupted')),
    started_at  timestamptz NOT NULL,
    finished_at timestamptz,
    message_id  text REFERENCES messages,
    detail      json NOT NULL DEFAULT '{}',
    PRIMARY KEY (turn_id, n),
    CHECK ((status = 'running') = (finished_at IS NULL)),
    CHECK ((kind = 'boundary') = (message_id IS NOT NULL))
);

CREATE TABLE streams (
    thread_id text PRIMARY KEY REFERENCES threads,
    last_seq  bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE streams IS 'Numbers the events of a thread. Locked last, so that events become visible in their order';

CREATE TABLE events (
    thread_id  text NOT NULL REFERENCES threads,
    seq        bigint NOT NULL,
    name       text NOT NULL,
    turn_id    text,
    data       json NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (thread_id, seq)
);
CREATE INDEX events_answer ON events (turn_id, seq) WHERE name IN ('answer.delta', 'answer.restarted', 'turn.started');
CREATE INDEX events_age ON events (created_at);

CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread_id  text NOT NULL REFERENCES threads,
    kind       text NOT NULL CHECK (kind IN ('work', 'background', 'stop')),
    turn_id    text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at     timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 second'
);
COMMENT ON TABLE outbox IS 'Nudges for thread workflows that are not known to have gone out';
CREATE INDEX outbox_due ON outbox (due_at);

CREATE TABLE workers (
    id         text PRIMARY KEY,
    lock_key   integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE workers IS 'Worker processes. A live one holds the advisory lock (1, lock_key) on a connection of its own';

CREATE TABLE attempts (
    worker_id   text NOT NULL,
    turn_id     text NOT NULL REFERENCES turns,
    workflow_id text NOT NULL,
    run_id      text NOT NULL,
    activity_id text NOT NULL,
    number      integer NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, activity_id)
);
COMMENT ON COLUMN attempts.number IS 'Of Temporal''s attempt, so that one that ends late does not remove the next one''s row';
COMMENT ON TABLE attempts IS 'Activities under way, by worker, so that a dead worker''s can be failed at once';
CREATE INDEX attempts_worker ON attempts (worker_id);
CREATE INDEX attempts_turn ON attempts (turn_id);

-- +goose Down
DROP TABLE attempts, workers, outbox, events, streams, steps, calls, rounds, entries, steering, deliveries,
    message_mentions, message_attachments, message_parts, messages, runs, turns, threads, api_keys, owners;
