package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

// A visit is a thread of an owner of its own, on which two moves meet once.
type visit struct {
	*bundle
	channel string

	driven     run // the conversation turn that runs, or ran last
	background run
	failed     string         // id of a turn that failed
	one        store.Accepted // on the steering row
	head, tail store.Accepted // of the line
	round      store.Round    // the next of driven, or of background, built from the session as the scene left it

	sent, given []string // parts that were accepted, and that were given back
}

// A move is one operation, as one of two that meet.
type move struct {
	name   string
	says   bool         // it brings a text
	point  store.Point  // where it holds its locks
	before func(*visit) // done while nothing runs yet
	ready  func(*visit) // done when the scene is set; may be done twice
	aim    func(*visit) // done last
	do     func(v *visit, ctx context.Context, db *store.DB, text string) answer
}

// An answer is what the caller of a move is told.
type answer struct {
	err   error
	told  string // with ids
	sent  string // the part that was accepted
	given *thread.Withdrawn
}

// tells makes an answer of what an operation returned.
func tells(err error, format string, args ...any) answer {
	if err != nil {
		return answer{err: err, told: refusal(err)}
	}
	return answer{told: fmt.Sprintf(format, args...)}
}

// refusal is the name of an error that a move may end with.
func refusal(err error) string {
	for name, e := range map[string]error{
		"not found": thread.ErrNotFound, "archived": thread.ErrArchived, "no running turn": thread.ErrNoRunningTurn,
		"stopping": thread.ErrStopping, "not steerable": thread.ErrNotSteerable, "already delivered": thread.ErrAlreadyDelivered,
		"already withdrawn": thread.ErrAlreadyWithdrawn, "conflict": thread.ErrConflict, "fenced": thread.ErrFenced, "moved": thread.ErrMoved,
	} {
		if errors.Is(err, e) {
			return "refused: " + name
		}
	}
	return unexpected + err.Error()
}

// unexpected begins what is told of an error that no move may end with.
const unexpected = "UNEXPECTED: "

var (
	sending     = sends("append", thread.DeliverAuto)
	sendingFile = move{name: "append with a file", says: true, point: store.PointAccept, ready: (*visit).filed,
		do: func(v *visit, ctx context.Context, db *store.DB, text string) answer {
			return v.accepts(ctx, db, text, files(v.file()))
		}}
	sendingMention   = sends("append with a mention", thread.DeliverAuto, mentions("@bob"))
	sendingTurn      = sends("accept as a turn", thread.DeliverTurn)
	sendingSteer     = sends("accept to steer", thread.DeliverSteer)
	interrupting     = sends("interrupt", thread.DeliverInterrupt)
	sendingElsewhere = sends("accept from another channel", thread.DeliverAuto, channel("whatsapp"))

	// delivering is one delivery, the same whoever brings it.
	delivering = move{name: "delivery", point: store.PointAccept, do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
		return v.accepts(ctx, db, "delivered", key("delivered"))
	}}
	redelivering = move{name: "delivery of what waits", point: store.PointAccept, ready: (*visit).steered,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			return v.accepts(ctx, db, "one", key("one"))
		}}

	taking = move{name: "take", point: store.PointTake, ready: (*visit).steered,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			entries, err := db.Take(ctx, v.driven.ref.ID)
			var texts []string
			for _, e := range entries {
				if e.Kind == thread.EntryUser {
					texts = append(texts, e.Text)
				}
			}
			return tells(err, "loads %q", texts)
		}}

	withdrawing = move{name: "withdraw", point: store.PointWithdraw, ready: (*visit).steered,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			return givesOne(db.WithdrawSteering(ctx, v.owner, v.thread))
		}}
	withdrawingIt = move{name: "withdraw by its id", point: store.PointWithdraw, ready: (*visit).steered,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			return givesOne(db.WithdrawMessage(ctx, v.owner, v.one.Message.ID))
		}}
	withdrawingHead = move{name: "withdraw of the first turn's message", point: store.PointWithdraw, ready: (*visit).tailed, do: withdrawingOnly.do}
	withdrawingOnly = move{name: "withdraw of the only turn's message", point: store.PointWithdraw,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			return givesOne(db.WithdrawMessage(ctx, v.owner, v.head.Message.ID))
		}}
	withdrawingTail = move{name: "withdraw of the last turn's message", point: store.PointWithdraw, ready: (*visit).tailed,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			return givesOne(db.WithdrawMessage(ctx, v.owner, v.tail.Message.ID))
		}}

	stoppingIt = move{name: "stop", point: store.PointStop, do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
		return gives(db.Stop(ctx, v.owner, v.thread, store.ScopeConversation))
	}}
	stoppingAll = move{name: "stop all", point: store.PointStop, do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
		return gives(db.Stop(ctx, v.owner, v.thread, store.ScopeAll))
	}}
	cancelling = move{name: "cancel", point: store.PointStop, do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
		return gives(db.Cancel(ctx, v.owner, v.driven.ref.ID))
	}}
	cancellingHead = move{name: "cancel of the first turn", point: store.PointStop,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			return gives(db.Cancel(ctx, v.owner, v.head.TurnID))
		}}
	cancellingBackground = move{name: "cancel of it", point: store.PointStop,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			return gives(db.Cancel(ctx, v.owner, v.background.ref.ID))
		}}
	resetting = move{name: "reset", point: store.PointReset, do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
		return gives(db.Reset(ctx, v.owner, v.thread))
	}}

	ending           = endings("end", func(v *visit) run { return v.driven }, store.Outcome{})
	failing          = endings("end, failed", func(v *visit) run { return v.driven }, broken())
	endingBackground = endings("end of it", func(v *visit) run { return v.background }, broken())

	claiming = move{name: "claim", point: store.PointClaim, do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
		c, err := db.Claim(ctx, v.thread)
		told := "claims nothing"
		if c.Conversation != nil {
			told = fmt.Sprintf("claims %s", c.Conversation.ID)
		}
		return tells(err, "%s, %d wait, %d in the background", told, c.Waiting, len(c.Background))
	}}
	replaying = move{name: "replay", point: store.PointReplay, before: (*visit).failedOne,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			turn, err := db.Replay(ctx, v.owner, v.failed)
			if err != nil {
				return tells(err, "")
			}
			return tells(nil, "puts %s back", turn.ID)
		}}

	committing = move{name: "commit of a round", point: store.PointRound,
		aim: func(v *visit) { v.round = v.driven.next(store.RoundCalls, "", tool("look")) },
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			entries, err := db.CommitRound(ctx, v.driven.ref, v.round)
			return tells(err, "writes %d entries", len(entries))
		}}
	answering = move{name: "commit of the answer", point: store.PointRound,
		aim: func(v *visit) { v.round = v.driven.next(store.RoundAnswer, "Built before.") },
		do:  committing.do}
	committingBackground = move{name: "commit of its round", point: store.PointRound, ready: (*visit).called,
		aim: func(v *visit) { v.round = v.background.next(store.RoundAnswer, "Built before.") },
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			entries, err := db.CommitRound(ctx, v.background.ref, v.round)
			return tells(err, "writes %d entries", len(entries))
		}}
	failingAttempt = move{name: "failed attempt", point: store.PointRound,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			next, err := db.FailAttempt(ctx, v.driven.ref, 0)
			return tells(err, "attempt %d is next", next)
		}}
	starting  = startings("start of a call")
	finishing = finishings("finish of a call")
)

// sends sends a message on the thread's channel.
func sends(name string, d thread.Delivery, mods ...with) move {
	return move{name: name, says: true, point: store.PointAccept, do: func(v *visit, ctx context.Context, db *store.DB, text string) answer {
		return v.accepts(ctx, db, text, append([]with{delivery(d)}, mods...)...)
	}}
}

func (v *visit) accepts(ctx context.Context, db *store.DB, text string, mods ...with) answer {
	out, err := db.Accept(ctx, v.incoming(text, append([]with{channel(v.channel)}, mods...)...))
	if err != nil {
		return tells(err, "")
	}
	a := tells(nil, "%s %s, %d parts", out.Disposition, out.TurnID, len(out.Message.Parts))
	if a.sent = text; out.Repeated {
		a.told += ", repeated, " + string(out.Message.State)
	}
	return a
}

func givesOne(w thread.Withdrawn, err error) answer {
	a := tells(err, "gives back %q %q %q", w.Text, w.Attachments, w.Mentions)
	if err == nil {
		a.given = &w
	}
	return a
}

func gives(s store.Stopped, err error) answer {
	a := tells(err, "stops %s", s.Turns)
	if a.given = s.Withdrawn; s.Withdrawn != nil {
		a.told += fmt.Sprintf(", gives back %q %q %q", s.Withdrawn.Text, s.Withdrawn.Attachments, s.Withdrawn.Mentions)
	}
	return a
}

func endings(name string, which func(*visit) run, o store.Outcome) move {
	return move{name: name, point: store.PointEnd, do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
		r := which(v)
		out, err := db.End(ctx, r.ref.ID, r.attempt, o)
		if out.Next == nil {
			return tells(err, "%s, nothing follows", out.Status)
		}
		return tells(err, "%s, %s follows", out.Status, out.Next.ID)
	}}
}

// startings starts a call of whatever turn the scene has asked one in.
func startings(name string) move {
	return move{name: name, point: store.PointCall, ready: (*visit).called,
		do: func(v *visit, ctx context.Context, db *store.DB, _ string) answer {
			_, ok, err := db.StartCall(ctx, v.caller().ref, 1, 0, &store.Start{WorkerID: "worker"})
			return tells(err, "to be run: %t", ok)
		}}
}

func finishings(name string) move {
	return move{name: name, says: true, point: store.PointCall, ready: (*visit).started,
		do: func(v *visit, ctx context.Context, db *store.DB, text string) answer {
			r := v.caller()
			_, err := db.FinishCall(ctx, r.ref, thread.Call{
				TurnID: r.ref.ID, Round: 1, Index: 1, Name: "look", State: thread.CallSucceeded, Result: text,
			})
			return tells(err, "writes it")
		}}
}

// caller is the turn whose calls moves are about.
func (v *visit) caller() run {
	if v.background.bundle != nil {
		return v.background
	}
	return v.driven
}

func (v *visit) send(text string, mods ...with) store.Accepted {
	v.t.Helper()
	out := v.accept(text, append([]with{channel(v.channel)}, mods...)...)
	v.sent = append(v.sent, text)
	return out
}

func (v *visit) begin() {
	v.t.Helper()
	out := v.send("hello")
	v.driven = v.run(&thread.Turn{ID: out.TurnID, ThreadID: v.thread, Kind: thread.Conversation, Attempt: 1})
}

// steered puts a message on the steering row.
func (v *visit) steered() {
	if v.one.Message == nil {
		v.one = v.send("one", key("one"))
		require.Equal(v.t, thread.DisposedSteering, v.one.Disposition)
	}
}

// tailed makes a second turn wait behind the first.
func (v *visit) tailed() {
	if v.tail.Message == nil {
		v.tail = v.send("second", channel("whatsapp"))
	}
}

// called has the turn ask for two calls: one that pays, pending, and one that looks, started.
func (v *visit) called() {
	r := v.caller()
	if len(v.list(`SELECT outcome FROM rounds WHERE turn_id = $1`, r.ref.ID)) == 0 {
		r.commit(store.RoundCalls, "", effect("pay"), effect("look"))
	}
}

func (v *visit) started() {
	v.called()
	_, _, err := v.db.StartCall(v.ctx(), v.caller().ref, 1, 1, &store.Start{WorkerID: "worker"})
	require.NoError(v.t, err)
}

// file is the id of a file of the owner.
func (v *visit) file() string { return "file_" + v.owner }

func (v *visit) filed() {
	v.exec(`
		INSERT INTO files (id, owner_id, name, type, size, sha256, state)
		VALUES ($1, $2, 'a.txt', 'text/plain', 5, repeat('0', 64), 'stored')
		ON CONFLICT DO NOTHING`, v.file(), v.owner)
}

func (v *visit) failedOne() {
	if v.failed == "" {
		r := v.start("failed", channel(v.channel))
		v.sent = append(v.sent, "failed")
		r.end(unknown())
		v.failed = r.ref.ID
	}
}

// note keeps what an answer says was accepted and given back.
func (v *visit) note(a answer) {
	if a.sent != "" && !slices.Contains(v.sent, a.sent) { // a repeated delivery is none
		v.sent = append(v.sent, a.sent)
	}
	if a.given != nil {
		v.given = append(v.given, strings.Split(a.given.Text, "\n\n")...)
	}
}
