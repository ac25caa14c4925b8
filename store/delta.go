package store

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/thread"
)

// Deltas is the one writer of answer deltas in a process. It gathers what all turns write and puts it down every
// interval, in one transaction: a row and a NOTIFY for each turn and tick would keep two cores busy at 200 turns.
type Deltas struct {
	db     *DB
	cancel context.CancelFunc
	done   sync.WaitGroup
	kick   chan struct{}

	failing bool // the last write failed

	mu      sync.Mutex
	pending map[string]*pendingDelta // by turn
	written *sync.Cond
	writing map[string]bool // turns in the transaction under way
}

type pendingDelta struct {
	ref   TurnRef
	delta thread.Delta
}

// deltaInterval is how long pieces are gathered. Below about 20 ms the rows cost more than the wait is worth; above 50 ms
// the eye sees it.
const deltaInterval = 30 * time.Millisecond

// NewDeltas starts a writer. Close ends it.
func (db *DB) NewDeltas() *Deltas {
	ctx, cancel := context.WithCancel(context.Background())
	d := &Deltas{
		db: db, cancel: cancel, kick: make(chan struct{}, 1), pending: map[string]*pendingDelta{}, writing: map[string]bool{},
	}
	d.written = sync.NewCond(&d.mu)
	d.done.Go(func() { d.run(ctx) })
	return d
}

// Close drops what is not yet written. Flush first what must not be lost.
func (d *Deltas) Close() {
	d.cancel()
	d.done.Wait()
}

// Write adds a piece of an answer. It does not block. Pieces of one attempt must come in order.
func (d *Deltas) Write(ref TurnRef, delta thread.Delta) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delta.Text = strings.ReplaceAll(delta.Text, "\x00", " ") // ->> refuses it; as long as it was, as offsets count bytes
	p := d.pending[ref.ID]
	if p == nil || p.delta.Round != delta.Round || p.delta.Attempt != delta.Attempt {
		d.pending[ref.ID] = &pendingDelta{ref, delta}
		return
	}
	p.delta.Text += delta.Text
}

// Flush waits until what was written of a turn is in Postgres, or refused by its fence, or ctx ends.
func (d *Deltas) Flush(ctx context.Context, turnID string) {
	defer context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.written.Broadcast()
	})()
	d.mu.Lock()
	defer d.mu.Unlock()
	for ctx.Err() == nil && (d.pending[turnID] != nil || d.writing[turnID]) {
		select {
		case d.kick <- struct{}{}:
		default:
		}
		d.written.Wait()
	}
}

func (d *Deltas) run(ctx context.Context) {
	tick := time.NewTicker(deltaInterval)
	defer tick.Stop()
	kick := d.kick
	for {
		select {
		case <-ctx.Done():
			d.mu.Lock()
			clear(d.pending)
			d.written.Broadcast()
			d.mu.Unlock()
			return
		case <-tick.C:
		case <-kick:
		}
		d.mu.Lock()
		batch := d.pending
		d.pending = map[string]*pendingDelta{}
		for id := range batch {
			d.writing[id] = true
		}
		d.mu.Unlock()
		pause := len(batch) > 0 && !d.write(ctx, batch)
		if kick = d.kick; pause {
			kick = nil // who waits in Flush would have it tried without end
		}
		d.mu.Lock()
		clear(d.writing)
		d.written.Broadcast()
		d.mu.Unlock()
	}
}

// write puts a tick's pieces down and reports whether all went. While Postgres is away, or another transaction holds a
// thread's event counter, pieces are kept for the next tick.
func (d *Deltas) write(ctx context.Context, batch map[string]*pendingDelta) bool {
	ctx, cancel := context.WithTimeout(ctx, lookInterval)
	defer cancel()
	var w *deltaTx
	err := d.db.transact(ctx, "write deltas", func(ctx context.Context, t *tx) error {
		w = &deltaTx{
			tx: t, batch: batch, seqs: map[string]int64{}, open: map[string]present{}, held: map[string]*pendingDelta{},
			threads: map[string]bool{},
		}
		return w.run(ctx)
	})
	if err != nil {
		if !d.failing {
			slog.Warn("deltas not written, trying again", "turns", len(batch), "error", err)
		}
		d.failing = true
		if errors.Is(err, thread.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			d.restore(batch)
		}
		return false
	}
	d.failing = false
	d.restore(w.held)
	for id := range w.threads {
		d.db.wake.tellEvents(id)
	}
	return len(w.held) == 0
}

// restore puts pieces that were not written back before those that came meanwhile.
func (d *Deltas) restore(batch map[string]*pendingDelta) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, p := range batch {
		switch later := d.pending[id]; {
		case later == nil:
			d.pending[id] = p
		case later.delta.Round == p.delta.Round && later.delta.Attempt == p.delta.Attempt:
			later.delta.Offset, later.delta.Text = p.delta.Offset, p.delta.Text+later.delta.Text
		}
	}
}

// deltaTx locks the event counters of several threads, those that nobody else holds, so that one slow transaction keeps no
// other thread waiting. It writes only pieces of turns whose
// fence is open and whose round and attempt are the present ones: end, stop, the round's commit and the next attempt hold
// the same counter until they commit, so no piece comes after them.
type deltaTx struct {
	*tx
	batch map[string]*pendingDelta
	seqs  map[string]int64         // by thread
	open  map[string]present       // by turn that may write
	held  map[string]*pendingDelta // pieces whose thread's counter another transaction holds

	threads map[string]bool // that got events
}

// present is the model call that a turn is at.
type present struct{ round, attempt int }

func (w *deltaTx) run(ctx context.Context) error {
	var ids []string
	for _, p := range w.batch {
		ids = append(ids, p.ref.ThreadID)
	}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT thread_id, last_seq FROM streams WHERE thread_id = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED`, ids).Query(
		func(rows pgx.Rows) error {
			var id string
			var seq int64
			_, err := pgx.ForEachRow(rows, []any{&id, &seq}, func() error {
				w.seqs[id] = seq
				return nil
			})
			return err
		})
	b.Queue(`
		SELECT t.id, t.rounds + 1, t.model_attempts
		FROM turns t
		JOIN runs r ON r.thread_id = t.thread_id
		WHERE t.id = ANY ($1) AND t.kind = 'conversation' AND t.status = 'running' AND r.turn_id = t.id AND NOT r.stopping`,
		slices.Collect(maps.Keys(w.batch))).Query(func(rows pgx.Rows) error {
		var id string
		var p present
		_, err := pgx.ForEachRow(rows, []any{&id, &p.round, &p.attempt}, func() error {
			w.open[id] = p
			return nil
		})
		return err
	})
	b.Queue(`SELECT clock_timestamp()`).QueryRow(func(r pgx.Row) error { return r.Scan(&w.now) })
	if err := w.flush(ctx, b); err != nil {
		return err
	}
	b = &pgx.Batch{}
	for _, id := range slices.Sorted(maps.Keys(w.batch)) {
		p := w.batch[id]
		if _, free := w.seqs[p.ref.ThreadID]; !free {
			w.held[id] = p
		} else if now, ok := w.open[id]; ok && now == (present{p.delta.Round, p.delta.Attempt}) {
			w.queue(b, p)
			w.threads[p.ref.ThreadID] = true
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return w.commit(ctx, b)
}

func (w *deltaTx) queue(b *pgx.Batch, p *pendingDelta) {
	w.stream, w.seq, w.events = p.ref.ThreadID, w.seqs[p.ref.ThreadID], nil
	if p.delta.Offset == 0 {
		w.phase(p.ref.ID, thread.PhaseAnswering)
	}
	w.emit(thread.EventAnswerDelta, p.ref.ID, p.delta)
	w.queueEvents(b)
	w.seqs[p.ref.ThreadID], w.events = w.seq, nil
}
