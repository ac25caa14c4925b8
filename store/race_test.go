package store_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"bobbin/e2e/tally"
	"bobbin/store"
	"bobbin/store/storetest"
	"bobbin/thread"
)

// A scene is a state of a thread in which moves can meet.
type scene struct {
	name    string
	channel string // of the thread; empty: web
	set     func(*visit)
	hubs    []move // meet each other and the others
	others  []move // meet hubs alone
	apart   bool   // hubs do not meet each other, as they do elsewhere
}

// scenes are where each pair of moves meets that touches the same rows.
var scenes = []scene{
	{name: "a turn works", set: (*visit).begin, hubs: []move{
		sending, sendingFile, delivering, sendingTurn, interrupting, taking, withdrawing, stoppingIt, failing, claiming, resetting,
		committing, starting, finishing, replaying,
	}},
	{name: "a turn works", set: (*visit).begin, apart: true, hubs: []move{sending, taking, withdrawing, stoppingIt, failing}, others: []move{
		redelivering, sendingMention, sendingSteer, withdrawingIt, cancelling, answering, failingAttempt,
	}},
	{name: "a turn has answered", set: func(v *visit) {
		v.begin()
		v.driven.commit(store.RoundAnswer, "Hi.")
	}, hubs: []move{ending}, others: []move{
		sending, sendingFile, delivering, redelivering, sendingTurn, sendingSteer, interrupting, taking, withdrawing, stoppingIt,
		stoppingAll, cancelling, claiming, resetting, replaying,
	}},
	{name: "a turn has answered, another waits", set: (*visit).queue, hubs: []move{ending, claiming, interrupting, stoppingAll}, others: []move{
		sending, sendingFile, sendingTurn, sendingElsewhere, withdrawingHead, withdrawingTail, cancellingHead, stoppingIt, resetting, replaying, failing,
	}},
	{name: "a turn is to be retried if it fails", channel: thread.ChannelSMS, set: (*visit).begin, hubs: []move{failing}, others: []move{
		sending, sendingFile, sendingTurn, interrupting, taking, withdrawing, stoppingIt, cancelling, claiming, resetting,
		committing, starting, finishing, replaying,
	}},
	{name: "a turn waits for its retry", channel: thread.ChannelSMS, set: (*visit).beginRetry, hubs: []move{sending, claiming, failing}, others: []move{
		sendingFile, sendingTurn, sendingSteer, interrupting, stoppingIt, cancelling, resetting, replaying,
	}},
	{name: "a turn waits and none runs", channel: thread.ChannelSMS, set: (*visit).line, hubs: []move{claiming, sending, withdrawingHead}, others: []move{
		sendingFile, sendingElsewhere, sendingSteer, interrupting, withdrawingOnly, withdrawingTail, stoppingIt, stoppingAll, cancellingHead, resetting, replaying,
	}},
	{name: "nothing runs", set: func(v *visit) {
		v.begin()
		v.driven.answer("Hi.")
	}, hubs: []move{sending, claiming, resetting}, others: []move{
		sendingSteer, sendingTurn, delivering, interrupting, stoppingIt, ending, replaying,
	}},
	{name: "a background turn works", set: func(v *visit) {
		v.begin()
		v.background = v.bundle.background("look around")
	}, hubs: []move{endingBackground, stoppingAll, resetting, committingBackground}, others: []move{
		cancellingBackground, starting, finishing, sending, claiming, ending,
	}},
}

// queue makes a turn run that has answered, and another wait behind it.
func (v *visit) queue() {
	v.begin()
	v.head = v.send("first", channel("telegram"))
	v.driven.commit(store.RoundAnswer, "Hi.")
}

func (v *visit) beginRetry() {
	v.begin()
	require.Equal(v.t, thread.TurnQueued, v.driven.end(broken()).Status)
}

// line makes a turn wait that is due, and none run: what held it back was cancelled.
func (v *visit) line() {
	v.beginRetry()
	v.head = v.send("first", delivery(thread.DeliverTurn))
	_, err := v.db.Cancel(v.ctx(), v.owner, v.driven.ref.ID)
	require.NoError(v.t, err)
}

// A race is a row of the table "Races" of docs/state-machine.md, and the cell that plays it.
type race struct {
	first, second, outcome string // as the page has them
	scene                  string
	moves                  [2]move
	comes                  string // what the first is told, what the second is told, and how the thread stands
}

// races are the rows of that table, one or more cells each.
var races = []race{
	{"append", "take", "both lines are loaded as one message", "a turn works", [2]move{sending, taking},
		`steering «hello», 2 parts | loads ["one\n\ntwo"] | runs «hello»: "hello" "one\n\ntwo"`},
	{"take", "append", "a new steering row, for the next round head", "a turn works", [2]move{taking, sending},
		`loads ["one"] | steering «hello», 1 parts | runs «hello»: "hello" "one" ?"two"`},
	{"append with a file", "take (was waiting)", "left where it is", "a turn works", [2]move{sendingFile, taking},
		`steering «hello», 2 parts | loads [] | runs «hello»: "hello" ?"one\n\ntwo"`},
	{"append with a file", "take (was waiting)", "left where it is", "a turn works", [2]move{sendingMention, taking},
		`steering «hello», 2 parts | loads [] | runs «hello»: "hello" ?"one\n\ntwo"`},
	{"withdraw", "take", "nothing is loaded", "a turn works", [2]move{withdrawing, taking},
		`gives back "one" [] [] | loads [] | runs «hello»: "hello" ×"one"`},
	{"take", "withdraw", "`already_delivered`", "a turn works", [2]move{taking, withdrawing},
		`loads ["one"] | refused: already delivered | runs «hello»: "hello" "one"`},
	{"append", "withdraw", "both lines come back", "a turn works", [2]move{sending, withdrawing},
		`steering «hello», 2 parts | gives back "one\n\ntwo" [] [] | runs «hello»: "hello" ×"one\n\ntwo"`},
	{"append", "withdraw", "both lines come back", "a turn works", [2]move{sendingFile, withdrawing},
		`steering «hello», 2 parts | gives back "one\n\ntwo" ["a.txt"] [] | runs «hello»: "hello" ×"one\n\ntwo"`},
	{"withdraw", "append", "a fresh message", "a turn works", [2]move{withdrawing, sending},
		`gives back "one" [] [] | steering «hello», 1 parts | runs «hello»: "hello" ×"one" ?"two"`},
	{"accept", "end", "the follow-up turn, in the end's transaction", "a turn has answered", [2]move{sending, ending},
		`steering «hello», 1 parts | succeeded, «two» follows | runs «two» (after «hello»): "hello" "Hi." "two"`},
	{"end", "accept", "an ordinary turn; `steer` is refused", "a turn has answered", [2]move{ending, sending},
		`succeeded, nothing follows | turn «two», 1 parts | runs «two»: "hello" "Hi." "two"`},
	{"end", "accept", "an ordinary turn; `steer` is refused", "a turn has answered", [2]move{ending, sendingSteer},
		`succeeded, nothing follows | refused: no running turn | idle: "hello" "Hi."`},
	{"stop", "accept", "a waiting turn; `steer` is refused", "a turn works", [2]move{stoppingIt, sending},
		`stops [«hello»] | queued «two», 1 parts | stopping «hello», waiting «two»: "hello" ?"two"`},
	{"stop", "accept", "a waiting turn; `steer` is refused", "a turn works", [2]move{stoppingIt, sendingSteer},
		`stops [«hello»] | refused: stopping | stopping «hello»: "hello"`},
	{"accept", "stop", "back to the composer", "a turn works", [2]move{sending, stoppingIt},
		`steering «hello», 1 parts | stops [«hello»], gives back "two" [] [] | stopping «hello»: "hello" ×"two"`},
	{"accept", "stop", "back to the composer", "a turn works", [2]move{sendingFile, stoppingIt},
		`steering «hello», 1 parts | stops [«hello»], gives back "two" ["a.txt"] [] | stopping «hello»: "hello" ×"two"`},
	{"stop", "take", "nothing is loaded", "a turn works", [2]move{stoppingIt, taking},
		`stops [«hello»], gives back "one" [] [] | refused: fenced | stopping «hello»: "hello" ×"one"`},
	{"take", "stop", "stays loaded; the stop withdraws nothing", "a turn works", [2]move{taking, stoppingIt},
		`loads ["one"] | stops [«hello»] | stopping «hello»: "hello" "one"`},
	{"stop", "end", "`cancelled`, no follow-up", "a turn has answered", [2]move{stoppingIt, ending},
		`stops [«hello»] | cancelled, nothing follows | idle: "hello" "Hi." stopped`},
	{"end", "stop", "200, nothing stopped", "a turn has answered", [2]move{ending, stoppingIt},
		`succeeded, nothing follows | stops [] | idle: "hello" "Hi."`},
	{"accept", "accept", "one row, parts in commit order", "a turn works", [2]move{sending, sending},
		`steering «hello», 1 parts | steering «hello», 2 parts | runs «hello»: "hello" ?"two\n\nthree"`},
	{"accept on an idle thread", "accept", "the second steers the turn of the first", "nothing runs", [2]move{sending, sending},
		`turn «two», 1 parts | steering «two», 1 parts | runs «two»: "hello" "Hi." "two" ?"three"`},
	{"a delivery", "the same", "one part", "a turn works", [2]move{delivering, delivering},
		`steering «hello», 1 parts | steering «hello», 1 parts, repeated, queued | runs «hello»: "hello" ?"delivered"`},
	{"claim", "withdraw of its message", "`already_delivered`", "a turn waits and none runs", [2]move{claiming, withdrawingHead},
		`claims «first», 1 wait, 0 in the background | refused: already delivered | runs «first», waiting «second»: "hello" "first" ?"second"`},
	{"withdraw of a waiting turn's message", "claim", "that turn is cancelled, the next is claimed", "a turn waits and none runs", [2]move{withdrawingHead, claiming},
		`gives back "first" [] [] | claims «second», 0 wait, 0 in the background | runs «second»: "hello" "second" ×"first"`},
	{"withdraw of a waiting turn's message", "claim", "that turn is cancelled, the next is claimed", "a turn has answered, another waits", [2]move{withdrawingHead, ending},
		`gives back "first" [] [] | succeeded, «second» follows | runs «second»: "hello" "Hi." "second" ×"first"`},
	{"withdraw of a waiting turn's message", "claim", "that turn is cancelled, the next is claimed", "a turn waits and none runs", [2]move{withdrawingOnly, claiming},
		`gives back "first" [] [] | claims nothing, 0 wait, 0 in the background | idle: "hello" ×"first"`},
	{"claim", "join", "the steering row", "a turn waits and none runs", [2]move{claiming, sending},
		`claims «first», 0 wait, 0 in the background | steering «first», 1 parts | runs «first»: "hello" "first" ?"two"`},
	{"join", "claim", "both lines are the request", "a turn waits and none runs", [2]move{sending, claiming},
		`queued «first», 2 parts | claims «first», 0 wait, 0 in the background | runs «first»: "hello" "first\n\ntwo"`},
	{"stop", "claim", "the waiting turn starts after the end", "a turn has answered, another waits", [2]move{stoppingIt, claiming},
		`stops [«hello»] | claims «hello», 1 wait, 0 in the background | stopping «hello», waiting «first»: "hello" ?"first"`},
	{"claim", "stop", "the turn that was claimed is stopped", "a turn waits and none runs", [2]move{claiming, stoppingIt},
		`claims «first», 0 wait, 0 in the background | stops [«first»] | stopping «first»: "hello" "first"`},
	{"claim", "claim", "one turn starts; both get it", "a turn waits and none runs", [2]move{claiming, claiming},
		`claims «first», 0 wait, 0 in the background | claims «first», 0 wait, 0 in the background | runs «first»: "hello" "first"`},
	{"end", "end, repeated", "the first's outcome and next turn", "a turn has answered, another waits", [2]move{ending, ending},
		`succeeded, «first» follows | succeeded, «first» follows | runs «first»: "hello" "Hi." "first"`},
	{"end", "end, repeated", "the first's outcome and next turn", "a turn has answered, another waits", [2]move{ending, failing},
		`succeeded, «first» follows | succeeded, «first» follows | runs «first»: "hello" "Hi." "first"`},
	{"reset", "any", "archived, fenced, cancelled", "a turn works", [2]move{resetting, sending},
		`stops [«hello»] | refused: archived | archived: "hello"`},
	{"reset", "any", "archived, fenced, cancelled", "a turn works", [2]move{resetting, taking},
		`stops [«hello»], gives back "one" [] [] | refused: fenced | archived: "hello" ×"one"`},
	{"reset", "any", "archived, fenced, cancelled", "a turn has answered", [2]move{resetting, ending},
		`stops [«hello»] | cancelled, nothing follows | archived: "hello" "Hi." stopped`},
	{"reset", "any", "archived, fenced, cancelled", "a turn has answered, another waits", [2]move{resetting, claiming},
		`stops [«hello» «first»], gives back "first" [] [] | claims nothing, 0 wait, 0 in the background | archived: "hello" "Hi." stopped ×"first"`},
	{"reset", "any", "archived, fenced, cancelled", "a turn works", [2]move{resetting, resetting},
		`stops [«hello»] | refused: archived | archived: "hello"`},
	{"accept", "reset", "withdrawn, and given back", "a turn works", [2]move{sending, resetting},
		`steering «hello», 1 parts | stops [«hello»], gives back "two" [] [] | archived: "hello" ×"two"`},
}

func (r race) cell() string {
	return pair{scene{name: r.scene}, r.moves}.cell(0)
}

// A pair is two moves that meet in a scene.
type pair struct {
	scene scene
	moves [2]move
}

func (s scene) pairs() (list []pair) {
	for i, hub := range s.hubs {
		others := append(slices.Clone(s.hubs[i:]), s.others...)
		if s.apart {
			others = s.others
		}
		for _, other := range others {
			list = append(list, pair{s, [2]move{hub, other}})
		}
	}
	return list
}

// cell names one order of a pair: first is 0 or 1.
func (p pair) cell(first int) string {
	return fmt.Sprintf("%s: %s, then %s", p.scene.name, p.moves[first].name, p.moves[1-first].name)
}

func (p pair) name() string {
	return fmt.Sprintf("%s/%s, %s", p.scene.name, p.moves[0].name, p.moves[1].name)
}

// orders is how many cells the pair is: a move that meets its like is one.
func (p pair) orders() int {
	if p.moves[0].name == p.moves[1].name {
		return 1
	}
	return 2
}

// text is what a move says. What a move says alone is the same in all cells.
func (p pair) text(place int) string {
	if place == 1 && p.moves[0].says {
		return "three"
	}
	return "two"
}

// visits are how often a cell is visited, at least, in each way.
type visits struct {
	ordered int // the first has committed, then the second begins
	waited  int // the first is stopped with its locks held, the second waits for them, then the first commits
	crossed int // both at once, and whichever comes first is the first
}

// planned is how often each cell is visited.
func planned() visits {
	return visits{ordered: tally.Pick(1, 10), waited: tally.Pick(1, 90), crossed: tally.Pick(1, 10)}
}

// A lab plays pairs, each visit on a thread of an owner of its own, with a DB for each of two processes, and counts.
type lab struct {
	*bundle
	other *store.DB
	plan  visits

	mu     sync.Mutex
	counts map[string]*visits // by cell
	found  map[string]string  // what came of a cell, in a line
}

// TestEveryCellOfTheRaceTable plays every pair of moves in both orders. What comes of two that are done one after the other
// is what must come of them in that order however they meet: while the second waits for the locks of the first, and both
// at once. The order is that in which they held the locks. What came of each cell is kept in testdata/races.txt, and the
// invariants hold after each visit.
func TestEveryCellOfTheRaceTable(t *testing.T) {
	l := openLab(t, planned())
	book := tally.Keep(t, "cells")
	began := time.Now()
	t.Run("cells", func(t *testing.T) {
		for _, s := range scenes {
			for _, p := range s.pairs() {
				t.Run(p.name(), func(t *testing.T) {
					t.Parallel()
					l.play(t, p)
				})
			}
		}
	})
	book.Add(l.row())
	l.print(t, time.Since(began))
	if !t.Failed() && len(l.found) == cells() { // not if only some were asked for
		l.compare(t)
		storetest.References(t, l.dsn)
	}
}

// TestEveryRaceOfThePage plays the cells of the rows of the page alone, once in each way.
func TestEveryRaceOfThePage(t *testing.T) {
	l := openLab(t, visits{ordered: 1, waited: 1, crossed: 1})
	for _, s := range scenes {
		for _, p := range s.pairs() {
			if slices.ContainsFunc(races, func(r race) bool { return r.cell() == p.cell(0) || r.cell() == p.cell(1) }) {
				t.Run(p.name(), func(t *testing.T) {
					t.Parallel()
					l.play(t, p)
				})
			}
		}
	}
}

func openLab(t *testing.T, plan visits) *lab {
	b := setup(t, watched)
	return &lab{bundle: b, other: b.second(watched), plan: plan, counts: map[string]*visits{}, found: map[string]string{}}
}

func (l *lab) play(t *testing.T, p pair) {
	var want [2]meeting // by the first
	for range l.plan.ordered {
		for first := range want {
			m := l.visit(t, p).ordered(first)
			if want[first].visit == nil {
				want[first] = m
				l.keep(m)
			}
			m.same(want[first])
			l.count(p, first).ordered++
		}
	}
	for range l.plan.waited {
		for first := range want {
			l.visit(t, p).waited(first).same(want[first])
			l.count(p, first).waited++
		}
	}
	for i := range 2 * l.plan.crossed {
		m := l.visit(t, p).crossed(i % 2)
		if m.first < 0 { // one held no locks, as it saw before that there was nothing to do
			m.first = map[bool]int{true: 0, false: 1}[m.digest() == want[0].digest()]
		}
		m.same(want[m.first])
		l.count(p, m.first).crossed++
	}
}

// count returns the counts of a cell. Each is written by one test alone.
func (l *lab) count(p pair, first int) *visits {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[p.cell(first)]
	if c == nil {
		c = &visits{}
		l.counts[p.cell(first)] = c
	}
	return c
}

// keep notes what came of a cell, and holds it to the row of the table.
func (l *lab) keep(m meeting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cell, told := m.pair.cell(m.first), m.told()
	if l.found[cell] != "" { // of a move and its like the first order is as good as the second
		return
	}
	l.found[cell] = fmt.Sprintf("%s | %s | %s", told[m.first], told[1-m.first], m.names.Replace(m.after.stands()))
	for _, r := range races {
		if r.cell() == cell {
			require.Equal(m.t, r.comes, l.found[cell], "%s, then %s: %s", r.first, r.second, r.outcome)
		}
	}
}

// visit makes a thread in the scene of a pair.
func (l *lab) visit(t *testing.T, p pair) *encounter {
	t.Helper()
	b := *l.bundle
	b.t, b.owner = t, "owner_"+rand.Text()
	require.NoError(t, b.db.EnsureOwner(b.ctx(), b.owner))
	b.thread = b.open()
	v := &visit{bundle: &b, channel: p.scene.channel}
	if v.channel == "" {
		v.channel = thread.ChannelWeb
	}
	each := func(stage func(move) func(*visit)) {
		for i, m := range p.moves {
			if do := stage(m); do != nil && (i == 0 || p.moves[0].name != m.name) {
				do(v)
			}
		}
	}
	each(func(m move) func(*visit) { return m.before })
	p.scene.set(v)
	each(func(m move) func(*visit) { return m.ready })
	each(func(m move) func(*visit) { return m.aim })
	e := &encounter{visit: v, pair: p}
	for i := range e.passes {
		e.passes[i] = &pass{point: p.moves[i].point, order: &e.order, begun: make(chan struct{})}
	}
	e.dbs = [2]*store.DB{l.db, l.other}
	return e
}

// An encounter is a visit at which a pair meets.
type encounter struct {
	*visit
	pair   pair
	dbs    [2]*store.DB
	passes [2]*pass
	order  atomic.Int64
	got    [2]answer
}

func (e *encounter) do(place int) {
	defer func() {
		if r := recover(); r != nil { // it is said of which cell
			e.got[place] = answer{told: fmt.Sprint(unexpected, r)}
		}
	}()
	ctx := context.WithValue(e.ctx(), passKey{}, e.passes[place])
	e.got[place] = e.pair.moves[place].do(e.visit, ctx, e.dbs[place], e.pair.text(place))
}

func (e *encounter) ordered(first int) meeting {
	e.t.Helper()
	e.do(first)
	e.do(1 - first)
	return e.met(first, "one after the other")
}

func (e *encounter) waited(first int) meeting {
	e.t.Helper()
	g := &gate{arrived: make(chan struct{}), open: make(chan struct{})}
	e.passes[first].hold = g
	one := async(func() { e.do(first) })
	select {
	case <-g.arrived:
	case <-one:
		e.t.Fatalf("%s: the first never held its locks: %s", e.pair.cell(first), e.got[first].told)
	}
	two := async(func() { e.do(1 - first) })
	why := e.blocked(first, two)
	close(g.open)
	<-one
	<-two
	require.NoError(e.t, why, "%s: the second was told: %s", e.pair.cell(first), e.got[1-first].told)
	return e.met(first, "the second waited")
}

// blocked returns when Postgres says that the second waits for the first.
func (e *encounter) blocked(first int, second <-chan struct{}) error {
	by, waits := e.passes[first], e.passes[1-first]
	select {
	case <-waits.begun:
	case <-second:
	}
	ctx, cancel := context.WithTimeout(e.ctx(), patience)
	defer cancel()
	for {
		var blocked bool
		err := e.sql.QueryRow(ctx, `SELECT $1::integer = ANY (pg_blocking_pids($2::integer))`, by.backend.Load(), waits.backend.Load()).Scan(&blocked)
		if blocked || err != nil {
			return err
		}
		select {
		case <-second:
			return errors.New("it did not wait")
		case <-time.After(time.Millisecond): // decides nothing; the two have a processor less to share
		}
	}
}

// crossed lets both go at once. start is who is started first, which decides nothing.
func (e *encounter) crossed(start int) meeting {
	e.t.Helper()
	var both sync.WaitGroup
	for _, place := range []int{start, 1 - start} {
		both.Go(func() { e.do(place) })
	}
	both.Wait()
	first := -1
	switch held := [2]int64{e.passes[0].held.Load(), e.passes[1].held.Load()}; {
	case held[0] == 0 || held[1] == 0:
	case held[0] < held[1]:
		first = 0
	default:
		first = 1
	}
	return e.met(first, "both at once")
}

// A meeting is what came of an encounter.
type meeting struct {
	*visit
	pair  pair
	first int // -1: nobody knows
	how   string
	got   [2]answer
	after *record
	names *strings.Replacer
}

func (e *encounter) met(first int, how string) meeting {
	e.t.Helper()
	for _, a := range e.got {
		require.NotContains(e.t, a.told, unexpected, "%s, %s", e.pair.cell(max(0, first)), how)
		e.note(a)
	}
	m := meeting{visit: e.visit, pair: e.pair, first: first, how: how, got: e.got, after: e.record()}
	m.names = m.after.names(e.owner)
	if wrong := m.after.invariants(e.sent, e.given); wrong != nil {
		e.t.Errorf("%s, %s: %s\n%s", e.pair.cell(max(0, first)), how, m.names.Replace(strings.Join(wrong, "; ")), m.digest())
	}
	return m
}

// told is what the callers were told, by their places.
func (m meeting) told() (told [2]string) {
	for i, a := range m.got {
		told[i] = m.names.Replace(a.told)
	}
	return told
}

func (m meeting) digest() string {
	told := m.told()
	return fmt.Sprintf("%s: %s\n%s: %s\n%s", m.pair.moves[0].name, told[0], m.pair.moves[1].name, told[1], m.names.Replace(m.after.whole()))
}

// same holds that the meeting came to what the same moves come to one after the other.
func (m meeting) same(want meeting) {
	m.t.Helper()
	if got, want := m.digest(), want.digest(); got != want {
		m.t.Fatalf("%s, %s: it comes to something else than in order (-):\n%s", m.pair.cell(m.first), m.how,
			cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
	}
}

// A pass goes with a move into its transaction.
type pass struct {
	point store.Point
	hold  *gate // nil: it is not stopped
	order *atomic.Int64

	held    atomic.Int64 // the place in the order in which locks were held; 0: never
	backend atomic.Uint32
	once    sync.Once
	begun   chan struct{} // closed when it has sent something
}

type passKey struct{}

// watched stops passes where they hold their locks, and sees on which connection they come.
func watched(c *store.Config) {
	c.Tracer = backends{}
	c.Point = func(ctx context.Context, at store.Point) {
		p, ok := ctx.Value(passKey{}).(*pass)
		if !ok || at != p.point {
			return
		}
		p.held.Store(p.order.Add(1))
		if g := p.hold; g != nil && g.used.CompareAndSwap(false, true) {
			close(g.arrived)
			<-g.open
		}
	}
}

// backends notes the Postgres process that serves a pass.
type backends struct{}

func (backends) see(ctx context.Context, c *pgx.Conn) context.Context {
	if p, ok := ctx.Value(passKey{}).(*pass); ok {
		p.backend.Store(c.PgConn().PID())
		p.once.Do(func() { close(p.begun) })
	}
	return ctx
}

func (t backends) TraceQueryStart(ctx context.Context, c *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return t.see(ctx, c)
}
func (backends) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (t backends) TraceBatchStart(ctx context.Context, c *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return t.see(ctx, c)
}
func (backends) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (backends) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

const goldenRaces = "testdata/races.txt"

func cells() (n int) {
	for _, s := range scenes {
		for _, p := range s.pairs() {
			n += p.orders()
		}
	}
	return n
}

// compare holds what came of each cell to what is written down.
func (l *lab) compare(t *testing.T) {
	var b strings.Builder
	for _, s := range scenes {
		fmt.Fprintln(&b, s.name)
		for _, p := range s.pairs() {
			for first := range p.orders() {
				fmt.Fprintf(&b, "  %s, then %s\n    %s\n", p.moves[first].name, p.moves[1-first].name, l.found[p.cell(first)])
			}
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(goldenRaces, []byte(b.String()), 0o600))
		return
	}
	golden, err := os.ReadFile(goldenRaces)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(strings.Split(string(golden), "\n"), strings.Split(b.String(), "\n")), "- %s, + what happens; -update rewrites it", goldenRaces)
}

// The page's table is what the cells hold: the same rows, in the same order.
func TestTheRacesOfThePageAreCells(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(pageOfTable)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Races\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var got, want []string
	for line := range strings.Lines(section) {
		if row := strings.Split(line, " | "); strings.HasPrefix(line, "| ") && len(row) == 4 {
			got = append(got, strings.Join(row[:3], " | "))
		}
	}
	require.Greater(t, len(got), 2)
	played := map[string]bool{}
	for _, s := range scenes {
		for _, p := range s.pairs() {
			played[p.cell(0)], played[p.cell(1)] = true, true
		}
	}
	for _, r := range races {
		require.True(t, played[r.cell()], "no scene plays %s", r.cell())
		if row := fmt.Sprintf("| %s | %s | %s", r.first, r.second, r.outcome); !slices.Contains(want, row) {
			want = append(want, row)
		}
	}
	require.Empty(t, cmp.Diff(want, got[2:]), "- races, + %s", pageOfTable)
}

func (l *lab) row() tally.Row {
	row := tally.Row{Cells: map[string]int{}}
	for cell, c := range l.counts {
		n := c.ordered + c.waited + c.crossed
		row.Cells[cell] = n
		row.Runs += n
		row.Operations += 2 * n
	}
	return row
}

// print tells how often each cell was visited.
func (l *lab) print(t *testing.T, took time.Duration) {
	var b strings.Builder
	least, all := -1, 0
	for _, cell := range slices.Sorted(maps.Keys(l.counts)) {
		c := l.counts[cell]
		n := c.ordered + c.waited + c.crossed
		if all += n; least < 0 || n < least {
			least = n
		}
		fmt.Fprintf(&b, "%5d %5d %5d  %s\n", c.ordered, c.waited, c.crossed, cell)
	}
	t.Logf("%d cells, %d visits in %s, each cell at least %d times\nordered, waited, crossed\n%s", len(l.counts), all, took.Round(time.Second), least, &b)
}
