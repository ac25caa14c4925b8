package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"bobbin/llm/scripted"
)

// batchInterval is how long the worker gathers pieces of answers (store.Deltas), which the floor has to wait for too.
const batchInterval = 30 * time.Millisecond

// token measures from the moment that the provider sends a token to the moment that a subscriber of the API process, which is
// another than the worker, reads it. The floor is one bare NOTIFY to one bare LISTEN, and the batch interval.
func token(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return nil, err
	}
	n := l.counts(3, 40)
	ours := func(ctx context.Context, n int) (samples, error) { return h.tokens(ctx, n) }
	ear, err := pgx.Connect(ctx, h.dsn)
	if err != nil {
		return nil, err
	}
	defer ear.Close(context.WithoutCancel(ctx))
	if _, err := ear.Exec(ctx, "LISTEN bench"); err != nil {
		return nil, err
	}
	bare := each(func(ctx context.Context) (time.Duration, error) {
		took, err := timed(func() error {
			if _, err := h.sql.Exec(ctx, `SELECT pg_notify('bench', 'thr_01a2b3c4d5e6f7')`); err != nil {
				return err
			}
			_, err := ear.WaitForNotification(ctx)
			return err
		})
		return took + batchInterval, err
	})
	d, err := fight(ctx, l.reps, 1, n, ours, bare)
	return []line{d.line("provider's token to a subscriber of another process", 0.5, 1.5)}, err
}

// tokens measures n tokens of one answer.
func (h *house) tokens(ctx context.Context, n int) (all samples, err error) {
	id, err := h.thread(ctx)
	if err != nil {
		return nil, err
	}
	open := make(chan struct{})
	pieces := make([]string, n)
	for i := range pieces {
		pieces[i] = fmt.Sprintf("token%04d ", i)
	}
	s := h.model.script(func(scripted.Request, int) scripted.Reply { return scripted.Reply{Pieces: pieces, Gate: open} })
	defer s.done()
	feed, err := h.subscribe(ctx, id)
	if err != nil {
		return nil, err
	}
	defer feed.close()
	out, err := h.say(ctx, id, s.name)
	if err != nil {
		return nil, err
	}
	open <- struct{}{} // the start
	for _, p := range pieces {
		time.Sleep(rand.N(2 * batchInterval)) // so that they fall anywhere in the interval
		open <- struct{}{}
		began := time.Now()
		at, err := feed.waitFor(p)
		if err != nil {
			return nil, err
		}
		all = append(all, at.Sub(began))
	}
	open <- struct{}{} // the end
	return all, h.ended(ctx, out.TurnID)
}

// A feed is an open event stream.
type feed struct {
	cancel context.CancelFunc
	lines  chan feedLine
}

type feedLine struct {
	text string
	at   time.Time
}

func (h *house) subscribe(ctx context.Context, threadID string) (*feed, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.api.addr+"/v1/threads/"+threadID+"/events?after=0", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
	resp, err := h.http.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	f := &feed{cancel: cancel, lines: make(chan feedLine, 1000)}
	go func() {
		defer resp.Body.Close()
		defer close(f.lines)
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			f.lines <- feedLine{s.Text(), time.Now()}
		}
	}()
	return f, nil
}

func (f *feed) close() {
	f.cancel()
	for range f.lines { // so that its reader ends
		continue
	}
}

// waitFor returns when text was read.
func (f *feed) waitFor(text string) (time.Time, error) {
	late := time.After(patience)
	for {
		select {
		case l, ok := <-f.lines:
			if !ok {
				return time.Time{}, errors.New("the event stream ended")
			}
			if strings.Contains(l.text, strings.TrimSpace(text)) {
				return l.at, nil
			}
		case <-late:
			return time.Time{}, fmt.Errorf("%q did not come", text)
		}
	}
}

// stop measures from the moment that a person stops a turn to the moment that the provider sees its connection closed, while
// the model writes: as it is, and with NOTIFY cut off.
func stop(ctx context.Context, l *lab) ([]line, error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return nil, err
	}
	whole, err := h.stops(ctx, l.counts(2, 120))
	if err != nil {
		return nil, err
	}
	// An API process that tells nobody: the function that it calls is found before the real one.
	_, err = h.sql.Exec(ctx, `
		CREATE SCHEMA deaf;
		CREATE FUNCTION deaf.pg_notify(text, text) RETURNS void LANGUAGE sql AS ''`)
	if err != nil {
		return nil, err
	}
	if err := h.startAPI("DATABASE_URL=" + h.dsn + "&search_path=" + url.QueryEscape("deaf,pg_catalog,public")); err != nil {
		return nil, err
	}
	deaf, err := h.stops(ctx, l.counts(2, 25))
	if err != nil {
		return nil, err
	}
	longest := slices.Max(deaf)
	return []line{
		limit("stop to the provider's connection closed, p50", whole.at(0.5), 20*time.Millisecond),
		limit("stop to the provider's connection closed, p99", whole.at(0.99), 200*time.Millisecond),
		limit("the same with NOTIFY cut off, longest", longest, time.Second),
	}, nil
}

// limit is a line whose goal is a time.
func limit(name string, got, goal time.Duration) line {
	return line{name: name, ours: ms(got), goal: "≤ " + ms(goal), verdict: verdictOf(got <= goal)}
}

func (h *house) stops(ctx context.Context, n int) (all samples, err error) {
	for range n {
		took, err := h.stopOnce(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all, nil
}

func (h *house) stopOnce(ctx context.Context) (time.Duration, error) {
	id, err := h.thread(ctx)
	if err != nil {
		return 0, err
	}
	s := h.model.script(func(scripted.Request, int) scripted.Reply {
		return scripted.Reply{Pieces: []string{"So far "}, Fault: scripted.Hang, After: 1}
	})
	defer s.done()
	out, err := h.say(ctx, id, s.name)
	if err != nil {
		return 0, err
	}
	r, err := s.next()
	if err := errors.Join(err, rest(ctx)); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := h.request(ctx, http.MethodPost, "/v1/threads/"+id+"/stop", struct{}{}, &struct{}{}); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	end, err := h.model.WaitEnd(ctx, r.N)
	if err != nil {
		return 0, err
	}
	return end.Gone.Sub(began), errors.Join(h.ended(ctx, out.TurnID), rest(ctx))
}
