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
	ref    TurnRef
	delta  thread.Delta
	unsure bool // a write of it, or of its beginning, failed and may stand all the same
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
		d.pending[ref.ID] = &pendingDelta{ref: ref, delta: delta}
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
			ends: map[reach]int{}, threads: map[string]bool{},
		}
		return w.run(ctx)
	})
	if err != nil {
		if !d.failing {
			slog.Warn("deltas not written, trying again", "turns", len(batch), "error", err)
		}
		d.failing = true
		if errors.Is(err, thread.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			for _, p := range batch {
				p.unsure = true
			}
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
			later.unsure = later.unsure || p.unsure
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

	ends    map[reach]int   // of what stands of the pieces that are unsure; 0: nothing does
	threads map[string]bool // that got events
}

// reach names a model attempt of a turn.
type reach struct {
	turnID string
	present
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
	w.queueEnds(b)
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
			w.queue(b, p.from(w.ends[reach{id, now}]))
			w.threads[p.ref.ThreadID] = true
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return w.commit(ctx, b)
}

// queueEnds looks how far the pieces that are unsure were written: a commit whose answer was lost may stand.
func (w *deltaTx) queueEnds(b *pgx.Batch) {
	var unsure []string
	for id, p := range w.batch {
		if p.unsure {
			unsure = append(unsure, id)
		}
	}
	if len(unsure) == 0 {
		return
	}
	b.Queue(`
		SELECT turn_id, (data ->> 'round')::integer, (data ->> 'attempt')::integer,
			max((data ->> 'offset')::integer + octet_length(data ->> 'text'))
		FROM events
		WHERE turn_id = ANY ($1) AND name = 'answer.delta'
		GROUP BY 1, 2, 3`, unsure).Query(func(rows pgx.Rows) error {
		var at reach
		var end int
		_, err := pgx.ForEachRow(rows, []any{&at.turnID, &at.round, &at.attempt, &end}, func() error {
			w.ends[at] = end
			return nil
		})
		return err
	})
}

// from is the piece without what stands of it before end, an offset.
func (p *pendingDelta) from(end int) *pendingDelta {
	cut := min(max(0, end-p.delta.Offset), len(p.delta.Text))
	rest := *p
	rest.delta.Offset, rest.delta.Text = p.delta.Offset+cut, p.delta.Text[cut:]
	return &rest
}

func (w *deltaTx) queue(b *pgx.Batch, p *pendingDelta) {
	if p.delta.Text == "" {
		return
	}
	w.stream, w.seq, w.events = p.ref.ThreadID, w.seqs[p.ref.ThreadID], nil
	if p.delta.Offset == 0 {
		w.phase(p.ref.ID, thread.PhaseAnswering)
	}
	w.emit(thread.EventAnswerDelta, p.ref.ID, p.delta)
	w.queueEvents(b)
	w.seqs[p.ref.ThreadID], w.events = w.seq, nil
}
