package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"bobbin/thread"
	"bobbin/tracing"
)

// Config says how to reach Postgres and what the limits are. A zero limit takes its default.
type Config struct {
	DSN            string        // URL or key=value form; it must reach Postgres itself, as LISTEN and session locks need it
	MaxConns       int           // of the pool; default 20
	TakeTimeout    time.Duration // statement_timeout of a take; default 2s
	MaxAttachments int           // of a merged message; default 10
	MaxText        int           // characters of a merged message; default 200,000
	EventRetention time.Duration // how long events can be replayed; default 30 days
	KeyRetention   time.Duration // how long an idempotency key is known; default 30 days
	MonthlyLimit   *thread.USD   // of every owner who has none of their own; nil: none

	// OnNudge is called after a commit that wrote an outbox row. It must not block. Nil: the relay finds the row.
	OnNudge func(Nudge)
	// Point, if set, is called where a transaction holds its locks and has not yet written. Tests stop it there.
	Point func(context.Context, Point)
	// Tracer, if set, sees every statement. One that is a pgx.BatchTracer too sees each flush.
	Tracer pgx.QueryTracer
}

// A Point is a named place inside a transaction.
type Point string

// The points: the locks are held and everything is read, nothing is written.
const (
	PointAccept   Point = "accept"
	PointTake     Point = "take"
	PointWithdraw Point = "withdraw"
	PointStop     Point = "stop"
	PointEnd      Point = "end"
	PointClaim    Point = "claim"
	PointReset    Point = "reset"
	PointReplay   Point = "replay"
	PointRound    Point = "round"
	PointCall     Point = "call"
)

// maxIdle is how long a transaction may wait for its process. One that is frozen, or on a machine that is cut off, would
// hold a thread's locks for as long as TCP takes to notice. Requests of the API wait for thirty seconds: who sends a message
// meanwhile is to have it accepted.
const maxIdle = 10 * time.Second

// DB is the store. It is safe for concurrent use; Close ends it.
type DB struct {
	pool *pgxpool.Pool
	cfg  Config
	wake *waker
}

// Open connects to a migrated database. It fails if Postgres cannot be reached.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	cfg = cfg.withDefaults()
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, errors.New("open store: the database URL cannot be read") // the cause would quote the password
	}
	pc.MaxConns = int32(cfg.MaxConns)
	pc.ConnConfig.Tracer = cfg.Tracer
	pc.ConnConfig.RuntimeParams["application_name"] = "bobbin"
	pc.ConnConfig.RuntimeParams["timezone"] = "UTC"
	pc.ConnConfig.RuntimeParams["default_transaction_isolation"] = "read committed" // each statement sees what the last holder of a lock left
	// Statements name their rows by key, so that a plan for these very values is no better, and planning costs more than they
	// do. Left to itself Postgres planned one under the locks two times of three. Lists of pages say otherwise.
	pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	// A machine that is gone without a word is noticed after some ten seconds, and its locks are freed.
	pc.ConnConfig.RuntimeParams["tcp_keepalives_idle"] = "5"
	pc.ConnConfig.RuntimeParams["tcp_keepalives_interval"] = "2"
	pc.ConnConfig.RuntimeParams["tcp_keepalives_count"] = "3"
	pc.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = strconv.FormatInt(maxIdle.Milliseconds(), 10)
	pc.AfterConnect = readTimesAsUTC
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	db := &DB{pool: pool, cfg: cfg}
	if err := db.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	db.wake = newWaker(db)
	return db, nil
}

func (c Config) withDefaults() Config {
	c.TakeTimeout = defaulted(c.TakeTimeout, 2*time.Second)
	c.MaxAttachments = defaulted(c.MaxAttachments, 10)
	c.MaxText = defaulted(c.MaxText, 200_000)
	c.MaxConns = defaulted(c.MaxConns, 20)
	c.EventRetention = defaulted(c.EventRetention, 30*24*time.Hour)
	c.KeyRetention = defaulted(c.KeyRetention, 30*24*time.Hour)
	return c
}

// Close waits for what is under way and closes all connections.
func (db *DB) Close() {
	db.wake.close()
	db.pool.Close()
}

// Ping returns nil if Postgres answers.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.pool.Ping(ctx); err != nil {
		return wrap("ping", err)
	}
	return nil
}

func readTimesAsUTC(_ context.Context, c *pgx.Conn) error {
	c.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}

func defaulted[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

func newID(prefix string) string {
	id := uuid.Must(uuid.NewV7())
	return prefix + "_" + strings.ReplaceAll(id.String(), "-", "")
}

// tx is one transaction. BEGIN travels with its first flush and COMMIT with its last.
type tx struct {
	db    *DB
	conn  *pgxpool.Conn
	begun bool

	committing bool // COMMIT was sent

	timeout time.Duration // of each statement; 0: none

	trace  string    // where it stands in its trace, see thread.Turn
	stream string    // the thread whose events it writes
	owner  string    // of that thread, where lock read it
	now    time.Time // of the database, read under the event counter's lock
	seq    int64     // of the last event
	events []thread.Event
	nudges []Nudge
	stops  []string // turns told to stop
}

// tries of a transaction that Postgres broke off to undo a deadlock or a serialization failure, that lost the race for a key
// and must read the winner's row, or whose connection broke before its COMMIT was sent.
const maxTries = 5

func (db *DB) transact(ctx context.Context, op string, fn func(context.Context, *tx) error) error {
	var err error
	for range maxTries {
		var mayStand bool
		if mayStand, err = db.once(ctx, fn); err == nil || !again(err) && (mayStand || !lost(ctx, err)) {
			break
		}
	}
	return wrap(op, err)
}

// once runs fn in one transaction. mayStand: its COMMIT was sent, so after an error nobody knows whether it stands.
func (db *DB) once(ctx context.Context, fn func(context.Context, *tx) error) (mayStand bool, err error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	t := &tx{db: db, conn: conn, trace: tracing.Parent(ctx)}
	if err := fn(ctx, t); err != nil {
		t.rollback(ctx)
		return t.committing, err
	}
	t.rollback(ctx) // of what decided to write nothing
	db.wake.tellStops(t.stops)
	if len(t.events) > 0 {
		db.wake.tellEvents(t.stream)
	}
	for _, n := range t.nudges {
		if db.cfg.OnNudge != nil {
			db.cfg.OnNudge(n)
		}
	}
	return true, nil
}

// flush sends b in one round trip, inside the transaction.
func (t *tx) flush(ctx context.Context, b *pgx.Batch) error {
	if !t.begun {
		begin := &pgx.Batch{}
		begin.Queue("BEGIN")
		if t.timeout > 0 {
			begin.Queue(`SELECT set_config('statement_timeout', $1, true)`, strconv.FormatInt(t.timeout.Milliseconds(), 10))
		}
		b.QueuedQueries = append(begin.QueuedQueries, b.QueuedQueries...)
		t.begun = true
	}
	return t.conn.SendBatch(ctx, b).Close()
}

// commit writes the events and nudges, sends b and commits, in one round trip.
func (t *tx) commit(ctx context.Context, b *pgx.Batch) error {
	t.queueEvents(b)
	t.queueNudges(b)
	b.Queue("COMMIT")
	t.committing = true
	if err := t.flush(ctx, b); err != nil {
		return err
	}
	t.begun = false
	return nil
}

func (t *tx) rollback(ctx context.Context) {
	if !t.begun || t.conn.Conn().IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := t.conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = t.conn.Conn().Close(ctx) // the pool must not hand out a connection inside a transaction
	}
}

func (t *tx) point(ctx context.Context, p Point) {
	if t.db.cfg.Point != nil {
		t.db.cfg.Point(ctx, p)
	}
}

// Codes of https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	codeUnique      = "23505"
	codeSerialize   = "40001"
	codeDeadlock    = "40P01"
	codeTextRefused = "22021" // a byte sequence that no text column takes
)

func again(err error) bool {
	c := code(err)
	return c == codeDeadlock || c == codeSerialize || c == codeUnique && (constraint(err) == "deliveries_pkey" || constraint(err) == "repeats_pkey")
}

// lost reports whether the connection broke, as all in the pool do when Postgres restarts. The next one may be whole.
func lost(ctx context.Context, err error) bool {
	if ctx.Err() != nil || sentinel(err) {
		return false
	}
	return disconnected(err) || strings.HasPrefix(code(err), "57P")
}

func code(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

func constraint(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.ConstraintName
	}
	return ""
}

// wrap names the operation, and turns driver errors into the sentinels of package thread. It keeps no text of rows.
func wrap(op string, err error) error {
	var pe *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows), code(err) == codeTextRefused: // no id is such text
		return fmt.Errorf("%s: %w", op, thread.ErrNotFound)
	case errors.As(err, &pe):
		return fmt.Errorf("%s: postgres %s %s: %w", op, pe.Code, pe.ConstraintName, unavailable(pe.Code))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), sentinel(err):
		return fmt.Errorf("%s: %w", op, err)
	case disconnected(err):
		return fmt.Errorf("%s: %w: %w", op, thread.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w: %w", op, errInternal, err)
}

// disconnected reports whether the connection is what failed, not what was asked of it.
func disconnected(err error) bool {
	var ce *pgconn.ConnectError
	var ne net.Error
	return errors.As(err, &ce) || errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, puddle.ErrClosedPool) || pgconn.SafeToRetry(err)
}

// unavailable sorts a Postgres code: trouble of the connection, resources or an operator passes, the rest is ours.
func unavailable(code string) error {
	if err, ok := setup[code]; ok {
		return err
	}
	switch code[:2] {
	case "08", "53", "57", "58", "40", "25", "55":
		return thread.ErrUnavailable
	}
	return errInternal
}

var errInternal = errors.New("a statement failed")

// setup is what an operator has to mend.
var setup = map[string]error{
	"3D000": errors.New("the database does not exist"),
	"28000": errors.New("the role does not exist or may not log in"),
	"28P01": errors.New("the password is wrong"),
	"42P01": errors.New("the schema is not there: run bobbin migrate"),
}

func sentinel(err error) bool {
	for _, s := range []error{
		thread.ErrNotFound, thread.ErrArchived, thread.ErrNoRunningTurn, thread.ErrStopping, thread.ErrNotSteerable,
		thread.ErrAlreadyDelivered, thread.ErrAlreadyWithdrawn, thread.ErrReplyTarget, thread.ErrKeyReused, thread.ErrConflict, thread.ErrUnauthorized,
		thread.ErrUnavailable, thread.ErrNoEntry, thread.ErrFenced, thread.ErrMoved, thread.ErrReserved,
	} {
		if errors.Is(err, s) {
			return true
		}
	}
	var le *thread.LimitError
	var ue *thread.UsageLimitError
	var ae *thread.AttachmentError
	return errors.As(err, &le) || errors.As(err, &ue) || errors.As(err, &ae)
}
