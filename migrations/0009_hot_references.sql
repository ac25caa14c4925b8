-- +goose Up
-- Postgres checks a reference by locking the row that it names, which writes that row. These tables are written at every
-- message, round and event, by transactions that made the row, or read it under a lock of the thread; and nothing deletes
-- an owner, a thread, a turn, a message or a round. Tests check all references at once, see storetest.References.
LOCK TABLE runs; -- the first that operations lock: those under way end, and the next wait here and hold nothing
ALTER TABLE turns DROP CONSTRAINT turns_thread_id_fkey;
ALTER TABLE runs DROP CONSTRAINT runs_turn_id_fkey;
ALTER TABLE messages DROP CONSTRAINT messages_thread_id_fkey, DROP CONSTRAINT messages_turn_id_fkey;
ALTER TABLE message_parts DROP CONSTRAINT message_parts_message_id_fkey;
ALTER TABLE deliveries
    DROP CONSTRAINT deliveries_owner_id_fkey, DROP CONSTRAINT deliveries_message_id_fkey, DROP CONSTRAINT deliveries_turn_id_fkey;
ALTER TABLE steering DROP CONSTRAINT steering_thread_id_fkey, DROP CONSTRAINT steering_message_id_fkey;
ALTER TABLE entries DROP CONSTRAINT entries_turn_id_fkey, DROP CONSTRAINT entries_message_id_fkey;
ALTER TABLE rounds DROP CONSTRAINT rounds_turn_id_fkey;
ALTER TABLE calls DROP CONSTRAINT calls_turn_id_round_fkey;
ALTER TABLE steps DROP CONSTRAINT steps_turn_id_fkey, DROP CONSTRAINT steps_message_id_fkey;
ALTER TABLE events DROP CONSTRAINT events_thread_id_fkey;
ALTER TABLE outbox DROP CONSTRAINT outbox_thread_id_fkey;
ALTER TABLE attempts DROP CONSTRAINT attempts_turn_id_fkey;
ALTER TABLE ledger
    DROP CONSTRAINT ledger_owner_id_fkey, DROP CONSTRAINT ledger_thread_id_fkey, DROP CONSTRAINT ledger_turn_id_fkey;

-- +goose Down
LOCK TABLE runs;
ALTER TABLE turns ADD CONSTRAINT turns_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES threads;
ALTER TABLE runs ADD CONSTRAINT runs_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns;
ALTER TABLE messages
    ADD CONSTRAINT messages_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES threads,
    ADD CONSTRAINT messages_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns;
ALTER TABLE message_parts ADD CONSTRAINT message_parts_message_id_fkey FOREIGN KEY (message_id) REFERENCES messages;
ALTER TABLE deliveries
    ADD CONSTRAINT deliveries_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES owners,
    ADD CONSTRAINT deliveries_message_id_fkey FOREIGN KEY (message_id) REFERENCES messages,
    ADD CONSTRAINT deliveries_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns;
ALTER TABLE steering
    ADD CONSTRAINT steering_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES threads,
    ADD CONSTRAINT steering_message_id_fkey FOREIGN KEY (message_id) REFERENCES messages;
ALTER TABLE entries
    ADD CONSTRAINT entries_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns,
    ADD CONSTRAINT entries_message_id_fkey FOREIGN KEY (message_id) REFERENCES messages;
ALTER TABLE rounds ADD CONSTRAINT rounds_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns;
ALTER TABLE calls ADD CONSTRAINT calls_turn_id_round_fkey FOREIGN KEY (turn_id, round) REFERENCES rounds (turn_id, n);
ALTER TABLE steps
    ADD CONSTRAINT steps_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns,
    ADD CONSTRAINT steps_message_id_fkey FOREIGN KEY (message_id) REFERENCES messages;
ALTER TABLE events ADD CONSTRAINT events_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES threads;
ALTER TABLE outbox ADD CONSTRAINT outbox_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES threads;
ALTER TABLE attempts ADD CONSTRAINT attempts_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns;
ALTER TABLE ledger
    ADD CONSTRAINT ledger_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES owners,
    ADD CONSTRAINT ledger_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES threads,
    ADD CONSTRAINT ledger_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES turns;
