package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"

	"bobbin/bench/floor"
	"bobbin/store"
)

const owner, apiKey = "bench", "bob_bench"

// A house is one installation: a database, a namespace of the Temporal server, and processes of the binary.
type house struct {
	*lab
	dir       string
	dsn       string
	namespace string
	env       []string
	sql       *pgxpool.Pool // of as many connections as a process of ours has
	temporal  client.Client
	http      *http.Client
	processes []*process
	api       *process
	worker    *process
}

// house makes an installation with nothing running in it. env are variables for all its processes.
func (l *lab) house(ctx context.Context, env ...string) (_ *house, err error) {
	name := fmt.Sprintf("house%d", l.model.next.Add(1))
	h := &house{lab: l, dir: filepath.Join(l.dir, name), namespace: name}
	h.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	l.houses = append(l.houses, h)
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		return nil, err
	}
	if h.dsn, err = l.database(ctx, name); err != nil {
		return nil, err
	}
	if h.sql, err = connect(ctx, h.dsn); err != nil {
		return nil, err
	}
	if err := h.openNamespace(ctx); err != nil {
		return nil, err
	}
	toolsFile := filepath.Join(h.dir, "tools.yaml")
	if err := os.WriteFile(toolsFile, []byte(l.tools.file()), 0o600); err != nil {
		return nil, err
	}
	h.env = append([]string{
		"DATABASE_URL=" + h.dsn, "TEMPORAL_ADDRESS=" + l.temporal.Address(), "TEMPORAL_NAMESPACE=" + name,
		"OPENAI_API_KEY=bench", "OPENAI_BASE_URL=" + l.model.url(), "BOBBIN_MODEL=scripted", "BOBBIN_TOOLS_FILE=" + toolsFile,
		"BOBBIN_RATE_LIMIT=0",
	}, env...)
	if l.profile != "" {
		if _, err := h.sql.Exec(ctx, `CREATE EXTENSION pg_stat_statements`); err != nil {
			return nil, err
		}
		h.env = append(h.env, "BOBBIN_BENCH_PROFILE="+l.profile)
	}
	if err := h.migrate(ctx); err != nil {
		return nil, err
	}
	return h, floor.Prepare(ctx, h.sql)
}

// furnish makes an installation with an API process and a worker process.
func (l *lab) furnish(ctx context.Context, env ...string) (*house, error) {
	h, err := l.house(ctx, env...)
	if err != nil {
		return nil, err
	}
	return h, errors.Join(h.startAPI(), h.startWorker())
}

// poolSize is the default of BOBBIN_DATABASE_CONNECTIONS, and what the floors have too.
const poolSize = 20

func connect(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = poolSize
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (h *house) migrate(ctx context.Context) error {
	p, err := h.start("migrate")
	if err != nil {
		return err
	}
	<-p.done
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("migrate: %s", p.logTail())
	}
	db, err := store.Open(ctx, store.Config{DSN: h.dsn})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.EnsureKey(ctx, owner, "bench", apiKey)
}

// openNamespace registers the namespace and waits until the server knows it everywhere.
func (h *house) openNamespace(ctx context.Context) (err error) {
	h.temporal, err = client.Dial(client.Options{HostPort: h.lab.temporal.Address(), Namespace: h.namespace, Logger: floor.Silent{}})
	if err != nil {
		return err
	}
	_, err = h.temporal.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: h.namespace, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	})
	if err != nil {
		return err
	}
	return until(ctx, "the namespace", func() (bool, error) {
		_, err := h.temporal.DescribeWorkflowExecution(ctx, "none", "")
		notFound := (*serviceerror.NotFound)(nil)
		return errors.As(err, &notFound) && !strings.Contains(notFound.Error(), "amespace"), nil
	})
}

var listens = regexp.MustCompile(`msg="API listens" addr=(\S+)`)

// startAPI starts an API process, which requests go to from now on.
func (h *house) startAPI(env ...string) (err error) {
	if h.api, err = h.start("api", append([]string{"BOBBIN_ADDR=127.0.0.1:0"}, env...)...); err != nil {
		return err
	}
	h.api.addr, err = h.api.waitLog(listens)
	return err
}

var runs = regexp.MustCompile(`msg="(worker runs)"`)

func (h *house) startWorker() (err error) {
	if h.worker, err = h.start("worker"); err != nil {
		return err
	}
	_, err = h.worker.waitLog(runs)
	return err
}

// statements writes which statements cost most, of all databases.
func (h *house) statements(ctx context.Context) error {
	rows, err := h.sql.Query(ctx, `
		SELECT format('%s %s calls=%s total=%sms plan=%sms wal=%sKiB rows=%s %s', d.datname, s.queryid, s.calls, round(s.total_exec_time), round(s.total_plan_time),
			round(s.wal_bytes / 1024), s.rows, regexp_replace(left(s.query, 300), '\s+', ' ', 'g'))
		FROM pg_stat_statements s
		JOIN pg_database d ON d.oid = s.dbid
		ORDER BY s.total_exec_time DESC
		LIMIT 80`)
	if err != nil {
		return err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(h.profile, h.namespace+"-statements.txt"), []byte(strings.Join(list, "\n")), 0o600)
}

func (h *house) close() {
	if h.profile != "" && h.sql != nil {
		if err := h.statements(context.Background()); err != nil {
			h.lab.say("statements not written: %v", err)
		}
	}
	for _, p := range h.processes {
		if h.profile != "" && !strings.HasPrefix(p.name, "floor") {
			p.profiled()
		}
		p.kill()
	}
	h.http.CloseIdleConnections()
	if h.temporal != nil {
		h.temporal.Close()
	}
	if h.sql != nil {
		h.sql.Close()
	}
}

// An accepted message, as the API answers.
type accepted struct {
	Message     struct{ ID string } `json:"message"`
	Disposition string              `json:"disposition"`
	TurnID      string              `json:"turn_id"`
}

// say sends a message. more are further fields of the body, a name and a value in turns.
func (h *house) say(ctx context.Context, threadID, text string, more ...string) (accepted, error) {
	var out accepted
	body := map[string]string{"text": text}
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i]] = more[i+1]
	}
	return out, h.request(ctx, http.MethodPost, "/v1/threads/"+threadID+"/messages", body, &out)
}

// thread opens a thread.
func (h *house) thread(ctx context.Context) (string, error) {
	var out struct{ ID string }
	err := h.request(ctx, http.MethodPost, "/v1/threads", map[string]string{}, &out)
	return out.ID, err
}

func (h *house) request(ctx context.Context, method, path string, body, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+h.api.addr+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode > 299 {
		return errors.Join(err, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, raw))
	}
	return json.Unmarshal(raw, out)
}

// ended waits until a turn has ended as it should.
func (h *house) ended(ctx context.Context, turnID string) error {
	return until(ctx, "the end of "+turnID, func() (ended bool, err error) {
		var status string
		if err := h.sql.QueryRow(ctx, `SELECT status FROM turns WHERE id = $1`, turnID).Scan(&status); err != nil {
			return false, err
		}
		if status == "failed" {
			return false, fmt.Errorf("turn %s failed", turnID)
		}
		return status == "succeeded" || status == "cancelled", nil
	})
}

// quiet waits until every nudge has gone out.
func (h *house) quiet(ctx context.Context) error {
	return until(ctx, "nudges to go out", func() (bool, error) {
		n, err := h.count(ctx, `SELECT count(*) FROM outbox`)
		return n == 0, err
	})
}

func (h *house) count(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = h.sql.QueryRow(ctx, query, args...).Scan(&n)
	return n, err
}

// until looks again and again for what must come.
func until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func keyOf(r *http.Request) (string, error) {
	var in struct{ Arguments struct{ Key string } }
	err := json.NewDecoder(r.Body).Decode(&in)
	return in.Arguments.Key, err
}

// openWorkflows counts the workflows of the namespace that run, as Temporal's visibility knows them.
func (h *house) openWorkflows(ctx context.Context) (int64, error) {
	resp, err := h.temporal.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Namespace: h.namespace, Query: "ExecutionStatus = 'Running'"})
	return resp.GetCount(), err
}
