-- +goose Up
CREATE TABLE files (
    id         text PRIMARY KEY,
    owner_id   text NOT NULL REFERENCES owners,
    name       text NOT NULL CHECK (name <> ''),
    type       text NOT NULL CHECK (type <> ''),
    size       bigint NOT NULL DEFAULT 0 CHECK (size >= 0),
    sha256     text NOT NULL DEFAULT '' CHECK (sha256 ~ '^([0-9a-f]{64})?$'),
    state      text NOT NULL CHECK (state IN ('uploading', 'stored', 'deleting')),
    key        text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (state = 'uploading' OR sha256 <> '')
);
COMMENT ON TABLE files IS 'What owners uploaded. The content is in the file store, under the id, and never there without a row here';
COMMENT ON COLUMN files.state IS 'Only stored is shown to anyone. uploading: its content may be there in part; deleting: it may be gone';
COMMENT ON COLUMN files.key IS 'The Idempotency-Key that it was uploaded with';
CREATE INDEX files_owner ON files (owner_id, id) WHERE state = 'stored';
CREATE UNIQUE INDEX files_key ON files (owner_id, key);
CREATE INDEX files_unsettled ON files (changed_at) WHERE state <> 'stored';

CREATE TABLE file_texts (
    file_id    text PRIMARY KEY REFERENCES files ON DELETE CASCADE,
    text       text NOT NULL,
    note       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE file_texts IS 'What the model reads of a file, written once';
COMMENT ON COLUMN file_texts.note IS 'Why the text is missing or not whole; empty: it is whole';

-- Messages from before there were files name ids of nothing. A file is deleted only after all messages that name it were
-- withdrawn, and these do not come back.
ALTER TABLE message_attachments
    ADD CONSTRAINT message_attachments_file FOREIGN KEY (file_id) REFERENCES files ON DELETE CASCADE NOT VALID;
CREATE INDEX message_attachments_file ON message_attachments (file_id);

-- +goose Down
DROP INDEX message_attachments_file;
ALTER TABLE message_attachments DROP CONSTRAINT message_attachments_file;
DROP TABLE file_texts, files;
