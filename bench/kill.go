package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"bobbin/llm/scripted"
)

// kill measures a SIGKILL of all processes in the middle of a turn of ten rounds with ten messages waiting behind it: once
// while the model writes, once while a tool runs. What was cut off has no outcome and is asked for again, the tool because
// it declares that it only reads; what had ended is not.
func kill(ctx context.Context, l *lab) ([]line, error) {
	var lines []line
	for _, where := range []string{"a model call", "a tool"} {
		out, err := l.killed(ctx, where)
		if err != nil {
			return lines, fmt.Errorf("in %s: %w", where, err)
		}
		name := "killed in " + where + ", 10 messages waiting"
		lines = append(lines,
			line{
				name: name + ": answered, lost, doubled", ours: fmt.Sprintf("%d, %d, %d", out.answered, out.lost, out.doubled), goal: "10, 0, 0",
				verdict: verdictOf(out.answered == 10 && out.lost == 0 && out.doubled == 0),
			},
			line{
				name: name + ": model calls and tools that had ended, repeated", ours: fmt.Sprint(out.repeated), goal: "0",
				verdict: verdictOf(out.repeated == 0),
			},
			limit(name+": all done after the restart", out.took, 6*time.Second))
	}
	return lines, nil
}

type aftermath struct {
	answered, lost, doubled int
	repeated                int // model calls and tools that had ended before the kill
	took                    time.Duration
}

// A ledger counts what reached the provider and the tools.
type ledger struct {
	mu    sync.Mutex
	seen  map[string]int
	model map[int]int // requests of the long turn, by round
}

const (
	killRounds = 10
	killAt     = 5
	killWait   = 10
)

func (l *lab) killed(ctx context.Context, where string) (out aftermath, err error) {
	h, err := l.furnish(ctx)
	if err != nil {
		return out, err
	}
	id, err := h.thread(ctx)
	if err != nil {
		return out, err
	}
	led := &ledger{seen: map[string]int{}, model: map[int]int{}}
	key := fmt.Sprint("k", l.model.next.Add(1))
	at := make(chan struct{}, 10)
	hold := make(chan struct{})
	inModel := where == "a model call"
	long := l.model.script(func(r scripted.Request, round int) scripted.Reply {
		led.mu.Lock()
		led.model[round]++
		led.mu.Unlock()
		reply := looks(killRounds, key)(r, round)
		if inModel && round == killAt {
			at <- struct{}{}
			reply.Gate, reply.GateAt = hold, scripted.AtFinish
		}
		return reply
	})
	defer long.done()
	l.tools.listen(func(key string) {
		led.mu.Lock()
		led.seen[key]++
		led.mu.Unlock()
	})
	defer l.tools.listen(nil)
	g := &gate{open: hold}
	if !inModel {
		g = l.tools.hold(fmt.Sprintf("%s-%d", key, killAt))
	}
	first, err := h.say(ctx, id, long.name)
	if err != nil {
		return out, err
	}
	if inModel {
		<-at
	} else if err := g.comes(); err != nil {
		return out, err
	}
	turns, done, err := h.line(ctx, id, first.Message.ID)
	if err != nil {
		return out, err
	}
	defer done()
	h.api.kill()
	h.worker.kill()
	close(g.open)
	began := time.Now()
	if err := errors.Join(h.startAPI(), h.startWorker()); err != nil {
		return out, err
	}
	for _, turn := range append([]string{first.TurnID}, turns...) {
		if err := h.ended(ctx, turn); err != nil {
			return out, err
		}
	}
	out.took = time.Since(began)
	out.repeated = led.repeated(inModel, fmt.Sprintf("%s-%d", key, killAt))
	return out, h.answers(ctx, id, turns, &out)
}

// line sends the messages that wait, each as a turn of its own since it answers another message.
func (h *house) line(ctx context.Context, threadID, replyTo string) (turns []string, done func(), err error) {
	var scripts []*script
	done = func() {
		for _, s := range scripts {
			s.done()
		}
	}
	for range killWait {
		s := h.model.script(say)
		scripts = append(scripts, s)
		out, err := h.say(ctx, threadID, s.name, "reply_to", replyTo)
		if err != nil {
			return nil, done, err
		}
		turns = append(turns, out.TurnID)
	}
	return turns, done, nil
}

// repeated counts what was asked for again although it had ended.
func (l *ledger) repeated(inModel bool, cutOff string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for round, times := range l.model {
		if !inModel || round != killAt {
			n += times - 1
		}
	}
	for key, times := range l.seen {
		if inModel || key != cutOff {
			n += times - 1
		}
	}
	return n
}

func (h *house) answers(ctx context.Context, threadID string, turns []string, out *aftermath) error {
	rows, err := h.sql.Query(ctx, `SELECT turn_id FROM messages WHERE thread_id = $1 AND role = 'assistant'`, threadID)
	if err != nil {
		return err
	}
	defer rows.Close()
	answers := map[string]int{}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		answers[id]++
	}
	for _, id := range slices.Compact(turns) {
		switch n := answers[id]; {
		case n == 0:
			out.lost++
		case n > 1:
			out.doubled++
		default:
			out.answered++
		}
	}
	return rows.Err()
}
