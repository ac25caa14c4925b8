package store

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// waker tells this process and all others that threads have new events and that turns have been told to stop. It is the
// one writer of NOTIFY in the process, so that the transactions it speaks of need none.
type waker struct {
	db     *DB
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	changed map[string]bool // threads with new events, since the last NOTIFY
	kick    chan struct{}

	feeds map[string]map[chan struct{}]bool // subscribers by thread
	stops map[string]map[*func()]bool       // what to call when a turn is told to stop
}

const (
	channelEvents = "bobbin_events" // payload: thread ids, separated by spaces
	channelStops  = "bobbin_stops"  // payload: turn ids, separated by spaces

	notifyInterval = 10 * time.Millisecond // one packed NOTIFY for all threads that changed meanwhile
	notifyPayload  = 7900                  // bytes; 7,999 are allowed: https://www.postgresql.org/docs/current/sql-notify.html
	stopInterval   = 250 * time.Millisecond
	lookInterval   = 2 * time.Second
	pingInterval   = 10 * time.Second
)

func newWaker(db *DB) *waker {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waker{
		db: db, cancel: cancel, changed: map[string]bool{}, kick: make(chan struct{}, 1),
		feeds: map[string]map[chan struct{}]bool{}, stops: map[string]map[*func()]bool{},
	}
	w.done.Go(func() { w.notify(ctx) })
	w.done.Go(func() { w.listen(ctx) })
	w.done.Go(func() { w.lookForStops(ctx) })
	return w
}

func (w *waker) close() {
	w.cancel()
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.done.Wait()
}

// tellEvents says that a thread has new events.
func (w *waker) tellEvents(id string) {
	w.mu.Lock()
	w.changed[id] = true
	w.mu.Unlock()
	w.wakeFeeds([]string{id})
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// tellStops says that turns have been told to stop. It does not wait for others to hear of it.
func (w *waker) tellStops(turns []string) {
	if len(turns) == 0 {
		return
	}
	w.callStops(turns)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed { // who closes waits for those that have begun
		w.done.Go(func() { w.send(channelStops, turns) })
	}
}

// notify sends the changed threads, at once after a pause and then at most once an interval.
func (w *waker) notify(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
		}
		w.mu.Lock()
		ids := slices.Collect(maps.Keys(w.changed))
		clear(w.changed)
		w.mu.Unlock()
		w.send(channelEvents, ids)
		select {
		case <-ctx.Done():
			return
		case <-time.After(notifyInterval):
		}
	}
}

// send packs ids into as few notifications as fit. One that is lost costs delay: others look by themselves.
func (w *waker) send(channel string, ids []string) {
	ctx, cancel := context.WithTimeout(context.Background(), lookInterval)
	defer cancel()
	for len(ids) > 0 {
		n, size := 0, 0
		for n < len(ids) && size+len(ids[n])+1 <= notifyPayload {
			size += len(ids[n]) + 1
			n++
		}
		if _, err := w.db.pool.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, strings.Join(ids[:n], " ")); err != nil {
			slog.Warn("notify failed", "channel", channel, "error", wrap("notify", err))
			return
		}
		ids = ids[n:]
	}
}

// listen hears the other processes. After a lost connection it wakes everyone, as it cannot know what it missed.
func (w *waker) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		slog.Warn("listener lost its connection", "error", wrap("listen", err))
		select {
		case <-ctx.Done():
		case <-time.After(reconnectDelay):
		}
	}
}

func (w *waker) listenOnce(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, w.db.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+channelEvents+"; LISTEN "+channelStops); err != nil {
		return err
	}
	w.mu.Lock()
	all := slices.Collect(maps.Keys(w.feeds))
	w.mu.Unlock()
	w.wakeFeeds(all)
	for {
		n, err := waitOrPing(ctx, conn)
		if err != nil {
			return err
		}
		ids := strings.Fields(n.Payload)
		switch n.Channel {
		case channelEvents:
			w.wakeFeeds(ids)
		case channelStops:
			w.callStops(ids)
		}
	}
}

// waitOrPing waits for a notification, and asks now and then whether the connection is still whole: one that broke without a
// word looks like a silent one.
func waitOrPing(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	for {
		bounded, cancel := context.WithTimeout(ctx, pingInterval)
		n, err := conn.WaitForNotification(bounded)
		cancel()
		if err == nil || ctx.Err() != nil || !pgconn.Timeout(err) {
			return n, err
		}
		bounded, cancel = context.WithTimeout(ctx, lookInterval)
		err = conn.Ping(bounded)
		cancel()
		if err != nil {
			return nil, err
		}
	}
}

func (w *waker) wakeFeeds(threads []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range threads {
		for c := range w.feeds[id] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

func (w *waker) callStops(turns []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range turns {
		for f := range w.stops[id] {
			(*f)()
		}
	}
}

// OnStop calls f when the turn is told to stop or has ended, by whichever process, until the returned function is called.
// f may be called more than once, must not block, and must not call back into the store. Where the notification is lost,
// a look every quarter of a second finds the flag.
func (db *DB) OnStop(turnID string, f func()) (cancel func()) {
	w := db.wake
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stops[turnID] == nil {
		w.stops[turnID] = map[*func()]bool{}
	}
	w.stops[turnID][&f] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.stops[turnID], &f)
		if len(w.stops[turnID]) == 0 {
			delete(w.stops, turnID)
		}
	}
}

// lookForStops is the backup of the notification, one query for all turns of the process.
func (w *waker) lookForStops(ctx context.Context) {
	tick := time.NewTicker(stopInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		turns := slices.Collect(maps.Keys(w.stops))
		w.mu.Unlock()
		if len(turns) == 0 {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, lookInterval)
		rows, _ := w.db.pool.Query(bounded, `
			SELECT t.id
			FROM turns t
			JOIN runs r ON r.thread_id = t.thread_id
			WHERE t.id = ANY ($1)
			  AND (t.status <> 'running' OR t.stopping OR t.kind = 'conversation' AND (r.turn_id IS DISTINCT FROM t.id OR r.stopping))`,
			turns)
		if ids, err := pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			w.callStops(ids)
		}
		cancel()
	}
}
