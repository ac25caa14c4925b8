package house

import (
	"context"
	"time"
)

// CutPostgres ends all connections of Bobbin's processes, and says each time that it did.
func (h *House) CutPostgres(ctx context.Context, cuts chan<- struct{}) {
	for ctx.Err() == nil {
		_, _ = h.SQL.Exec(ctx, `
			SELECT pg_terminate_backend(pid)
			FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'bobbin' AND pid <> pg_backend_pid()`)
		cuts <- struct{}{}
		select {
		case <-ctx.Done():
		case <-time.After(700 * time.Millisecond): // long enough for some work to be done
		}
	}
}

// Deafen ends, again and again, every connection that listens for notifications.
func (h *House) Deafen(ctx context.Context) {
	for ctx.Err() == nil {
		_, _ = h.SQL.Exec(ctx, `
			SELECT pg_terminate_backend(pid)
			FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE 'LISTEN%'`)
		time.Sleep(PollEvery) // how often, not how long for
	}
}
