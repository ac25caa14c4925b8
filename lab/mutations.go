package main

// mutations are what breaks, from accept to end. Each is written against the text as it is: where that changes, a test says
// which is to be written anew. A mutation that leaves another guard standing shows nothing, so each takes away the one that
// its tests are about.
//
// One promise has no mutation: that a workflow hears the signals that have come before it continues as new. Unheard they are
// lost, and nothing is lost with them: the new run starts with a claim, which sees in Postgres whatever a nudge to look for
// work could say, and a turn that was told to stop is told by the flag in its row and by its worker's notification, of which
// the signal is the backup. It would be later by no more than the sweep; no test could tell.
var mutations = []mutation{
	{
		name: "accept decides without the run row's lock",
		file: "store/accept.go",
		old:  `if a.held, err = a.lock(ctx, threadID, func(b *pgx.Batch) { a.queueReads(b, threadID) }); err != nil {`,
		new: `b, h := &pgx.Batch{}, &held{threadID: threadID}
	a.held = h
	b.Queue("SELECT COALESCE(turn_id, ''), stopping FROM runs WHERE thread_id = $1", threadID).QueryRow(func(r pgx.Row) error {
		return r.Scan(&h.runningID, &h.stopping)
	})
	b.Queue("SELECT id, message_id FROM steering WHERE thread_id = $1 AND state = 'queued'", threadID).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(&h.steeringID, &h.steeringMessage); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	h.queueReads(b)
	a.queueReads(b, threadID)
	a.lockStream(b, threadID)
	if err = a.flush(ctx, b); err != nil {`,
		pkg: "./store",
		run: "TestEveryRaceOfThePage/a turn works/append, take",
	},
	{
		name: "a repeated delivery is taken for another message",
		file: "store/accept.go",
		old:  "\tif a.in.Key == \"\" {\n\t\treturn\n\t}",
		new:  "\tif a.in.Key != \"none that is so called\" {\n\t\treturn\n\t}",
		pkg:  "./store",
		run:  "TestAcceptTheSameKey",
	},
	{
		name: "an accept leaves no outbox row",
		file: "store/outbox.go",
		old:  `for i := range t.nudges {`,
		new:  `for i := range t.nudges[:0] {`,
		pkg:  "./store",
		run:  "TestNudgeIsInTheOutbox|TestEndNudges",
	},
	{
		name: "an outbox row is left to the process that may have died before it signalled",
		file: "store/outbox.go",
		old:  `WHERE due_at <= clock_timestamp() ORDER BY due_at`,
		new:  `WHERE due_at <= clock_timestamp() - interval '1 day' ORDER BY due_at`,
		pkg:  "./store",
		run:  "TestNudgeIsInTheOutbox",
	},
	{
		name: "what a lock protects is read before it is taken",
		file: "store/lock.go",
		old:  "\th.queueLocks(b)\n\th.queueReads(b)\n",
		new: `	b.Queue("SELECT r.turn_id, s.id, s.message_id FROM runs r LEFT JOIN steering s ON s.thread_id = r.thread_id AND s.state = 'queued' WHERE r.thread_id = $1",
		threadID).Query(func(rows pgx.Rows) error {
		var turn, message *string
		var id *int64
		for rows.Next() {
			if err := rows.Scan(&turn, &id, &message); err != nil {
				return err
			}
		}
		if turn != nil {
			h.runningID = *turn
		}
		if id != nil {
			h.steeringID, h.steeringMessage = *id, *message
		}
		return rows.Err()
	})
	h.queueReads(b)
	h.queueLocks(b)
`,
		pkg: "./store",
		run: "TestEveryRaceOfThePage/a turn works/append, take",
	},
	{
		name: "a take does not look whether its turn was told to stop",
		file: "store/take.go",
		old:  `h.runningID != turnID || h.stopping || h.archived`,
		new:  `h.runningID != turnID || h.archived`,
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage/a turn works/take, stop",
	},
	{
		name: "a take loads a message behind the turn's answer",
		file: "store/take.go",
		old:  `m := h.steering; answered || m == nil`,
		new:  `m := h.steering; m == nil`,
		pkg:  "./store",
		run:  "TestTakeLoadsNothingBehindAnAnswer",
	},
	{
		name: "a take loads what has files",
		file: "store/take.go",
		old:  `m == nil || len(m.Attachments) > 0 || len(m.Mentions) > 0`,
		new:  `m == nil || len(m.Mentions) > 0`,
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage/a turn works/append with a file, take",
	},
	{
		name: "a take leaves the turn's limits as they were",
		file: "store/take.go",
		old:  `limit_since = @now, limit_rounds = 0, limit_tool_calls = 0, empty_retries = 0`,
		new:  `limit_since = limit_since`,
		pkg:  "./store",
		run:  "TestTakeWritesTheBoundary",
	},
	{
		name: "a take does not revoke the warning to wrap up",
		file: "store/take.go",
		old:  `if turn.limit.WrapUpWarned {`,
		new:  `if turn.limit.WrapUpWarned && turn.steps < 0 {`,
		pkg:  "./store",
		run:  "TestTakeWritesTheBoundary",
	},
	{
		name: "take and claim leave a message at the time when it was sent",
		file: "store/claim.go",
		old:  `turn_id = @turn, created_at = @now, seq = @seq`,
		new:  `turn_id = @turn, created_at = LEAST(created_at, @now), seq = @seq`,
		pkg:  "./store",
		run:  "TestClaimAndTakeMoveTheTime",
	},
	{
		name: "take and claim leave a message at the place where it was sent",
		file: "store/claim.go",
		old:  `created_at = @now, seq = @seq`,
		new:  `created_at = @now, seq = LEAST(@seq, 1)`,
		pkg:  "./store",
		run:  "TestMessagesStandInTheOrder",
	},
	{
		name: "a claim starts the next turn beside the one that runs",
		file: "store/claim.go",
		old:  "\tif h.runningID != \"\" {\n\t\treturn &h.running.Turn",
		new:  "\tif h.runningID != \"\" && h.head == nil {\n\t\treturn &h.running.Turn",
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage/a turn has answered, another waits/claim, stop",
	},
	{
		name: "a withdrawal after the take gives the text back",
		file: "store/withdraw.go",
		old:  `case m.State == thread.MessageDelivered:`,
		new:  `case m.State == thread.MessageDelivered && h.runningID == "":`,
		pkg:  "./store",
		run:  "TestWithdrawTwice",
	},
	{
		name: "an end makes a turn of a message that was withdrawn",
		file: "store/withdraw.go",
		old:  "\tb.Queue(`UPDATE steering SET state = 'withdrawn', settled_at = $2 WHERE id = $1`, h.steeringID, t.now)\n\tout := t.withdraw(b, h.steering)",
		new:  "\tout := t.withdraw(&pgx.Batch{}, h.steering)",
		pkg:  "./store",
		run:  "TestEveryCellOfTheRaceTable/cells/a turn has answered/end, withdraw",
	},
	{
		name: "a request that is repeated under its key is carried out once more",
		file: "store/repeat.go",
		old:  "\tif r.prior == nil {",
		new:  "\tif r.Key != \"none that is so called\" {",
		pkg:  "./store",
		run:  "TestAKeyIsOfOneRequest",
	},
	{
		name: "a key that was used is answered whatever it is used for now",
		file: "store/repeat.go",
		old:  `if *r.priorAsked != r.asked {`,
		new:  `if *r.priorAsked == "" {`,
		pkg:  "./store",
		run:  "TestAKeyIsOfOneRequest",
	},
	{
		name: "a message's key that was used is answered whatever is sent now",
		file: "store/accept.go",
		old:  `(!a.priorHere || !slices.Equal(a.priorPrint, a.fingerprint))`,
		new:  `!a.priorHere`,
		pkg:  "./store",
		run:  "TestAcceptWithAKeyOfAnotherText",
	},
	{
		name: "a stop leaves what waits to be loaded",
		file: "store/stop.go",
		old:  "\tif s.steering != nil {\n\t\ts.out.give(",
		new:  "\tif s.steering != nil && s.runningID == \"\" {\n\t\ts.out.give(",
		pkg:  "./store",
		run:  "TestStopScopes",
	},
	{
		name: "a stop raises no flag",
		file: "store/stop.go",
		old:  `UPDATE runs SET stopping = true WHERE thread_id = $1`,
		new:  `UPDATE runs SET stopping = stopping WHERE thread_id = $1`,
		pkg:  "./store",
		run:  "TestStopScopes",
	},
	{
		name: "a stop of everything leaves the turns that wait",
		file: "store/stop.go",
		old:  `t.status IN ('queued', 'running', 'waiting')`,
		new:  `t.status IN ('running', 'waiting')`,
		pkg:  "./store",
		run:  "TestStopScopes",
	},
	{
		name: "an end does not look at the steering row",
		file: "store/end.go",
		old:  `if e.steering != nil && e.turn.Status != thread.TurnQueued {`,
		new:  `if e.steering != nil && e.turn.Status == thread.TurnRunning {`,
		pkg:  "./store",
		run:  "TestFollowUp",
	},
	{
		name: "a repeated end ends the turn once more",
		file: "store/end.go",
		old:  `if e.turn.Status != thread.TurnRunning || e.turn.Attempt != attempt {`,
		new:  `if e.turn.Status == thread.TurnQueued {`,
		pkg:  "./store",
		run:  "TestEndRepeated",
	},
	{
		name: "a repeated end does not say what the first has claimed",
		file: "store/end.go",
		old:  `e.turn.nextTurnID != e.runningID {`,
		new:  `e.turn.nextTurnID == e.runningID {`,
		pkg:  "./store",
		run:  "TestEndRepeated",
	},
	{
		name: "a follow-up turn goes behind what waits",
		file: "store/end.go",
		old:  "\th.head, h.headMsg = turn, m\n\tif h.last == nil {",
		new:  "\tif h.head == nil {\n\t\th.head, h.headMsg = turn, m\n\t}\n\tif h.last == nil {",
		pkg:  "./store",
		run:  "TestFollowUp",
	},
	{
		name: "a failure takes back an answer that was committed",
		file: "store/end.go",
		old:  `case e.answer != nil: // it is written`,
		new:  `case e.answer != nil && o.Error == nil: // it is written`,
		pkg:  "./store",
		run:  "TestAnswerThatWasCommitted",
	},
	{
		name: "a turn whose tool may have taken effect is tried again by itself",
		file: "store/end.go",
		old:  ` || why.Code == thread.FailToolUnknown ||`,
		new:  ` ||`,
		pkg:  "./store",
		run:  "TestUnknownToolOutcome",
	},
	{
		name: "an end leaves open calls without a result",
		file: "store/end.go",
		old:  "\te.interrupt(e.b, e.turn.ID)\n\te.writeLost()",
		new:  "\te.writeLost()",
		pkg:  "./store",
		run:  "TestEveryCallOfTheSession",
	},
	{
		name: "a turn writes without its fence",
		file: "store/fence.go",
		old:  `WHERE r.thread_id = $1 AND r.turn_id = $2 AND NOT r.stopping`,
		new:  `WHERE r.thread_id = $1 AND $2::text <> ''`,
		pkg:  "./store",
		run:  "TestAfterTheEnd|TestCompactOfATurnThatWasStopped",
	},
	{
		name: "the fence does not see a stop",
		file: "store/fence.go",
		old:  `AND r.turn_id = $2 AND NOT r.stopping`,
		new:  `AND r.turn_id = $2`,
		pkg:  "./store",
		run:  "TestAfterTheEnd|TestCompactOfATurnThatWasStopped|TestDeltasNone",
	},
	{
		name: "a turn's events are numbered without the counter's lock",
		file: "store/fence.go",
		old:  "\t\tFOR SHARE OF r\n\t\tFOR NO KEY UPDATE OF s`",
		new:  "\t\tFOR SHARE OF r`",
		pkg:  "./store",
		run:  "TestEventsOfTurnsThatWriteAtOnce",
	},
	{
		name: "a round is written on a session that has moved on",
		file: "store/round.go",
		old:  `at.end != r.Base || at.rounds != r.N-1`,
		new:  `r.Base = at.end; at.rounds != r.N-1`,
		pkg:  "./store",
		run:  "TestCommitRoundAfterATake",
	},
	{
		name: "a round is written without a look whether it stands",
		file: "store/round.go",
		old:  `at.end != r.Base || at.rounds != r.N-1`,
		new:  `at.end != r.Base`,
		pkg:  "./store",
		run:  "TestTwoHolders|TestRefusedRound",
	},
	{
		name: "a side effect runs before its start is recorded",
		file: "store/call.go",
		old:  `SET state = 'started', started_at = @now, worker_id = @worker`,
		new:  `SET state = state, started_at = NULL, worker_id = NULLIF(@worker, @worker), finished_at = NULLIF(@now, @now)`,
		pkg:  "./store",
		run:  "TestStartCallTwice|TestOutcomeThatComes",
	},
	{
		name: "a side effect that was started is run again",
		file: "store/call.go",
		old:  `if ok = *state == thread.CallPending; !ok {`,
		new:  `if ok = state.Open(); !ok {`,
		pkg:  "./activities",
		run:  "TestAToolWithSideEffects",
	},
	{
		name: "a call that has its result is run again by the next stint",
		file: "store/session.go",
		old:  `if c.TurnID == l.ref.ID && c.State.Open() {`,
		new:  `if c.State = thread.CallPending; c.TurnID == l.ref.ID {`,
		pkg:  "./store",
		run:  "TestRetryDoesNotRunFinishedTools",
	},
	{
		name: "a tool with side effects is retried as one that only reads",
		file: "activities/calls.go",
		old:  `} else if ok && t.SideEffects() && c.State.Open() {`,
		new:  `} else if ok && t.Name == "" && c.State.Open() {`,
		pkg:  "./activities",
		run:  "TestAToolWithSideEffectsRunsOnce",
	},
	{
		name: "an answer that stands in the step log is asked for again",
		file: "agent/loop.go",
		old:  `case l.state.Last == Answer:`,
		new:  `case l.state.Last == Answer && l.state.Round > 1000:`,
		pkg:  "./agent",
		run:  "TestRunEndsWithoutAModelCall|TestATurnKilled",
	},
	{
		name: "reservations of one owner are made without the month's lock",
		file: "store/ledger.go",
		old:  "\n\t\tFOR NO KEY UPDATE OF s`",
		new:  "`",
		pkg:  "./store",
		run:  "TestOfCallsAtOnce",
	},
	{
		name: "a message is accepted from an owner whose limit is reached",
		file: "store/accept.go",
		old:  `case a.spending.Over():`,
		new:  `case a.spending.Over() && a.archived:`,
		pkg:  "./store",
		run:  "TestAtTheLimitNoMessage",
	},
	{
		name: "a sweep finds nothing",
		file: "store/outbox.go",
		old:  "LIMIT 1000\n",
		new:  "LIMIT 0\n",
		pkg:  "./store",
		run:  "TestSweepFinds",
	},
	{
		name: "a relay forgets a nudge that it could not send",
		file: "relay/relay.go",
		old:  "\"error\", err)\n\t\t}\n\t\treturn\n\t}\n\tif n.ID == 0 {",
		new:  "\"error\", err)\n\t\t}\n\t}\n\tif n.ID == 0 {",
		pkg:  "./relay",
		run:  "TestANudgeThatCouldNotBeSent",
	},
	{
		name: "a workflow does not tell its turn that it was stopped",
		file: "workflows/thread.go",
		old:  "\t\tt.running.stop()\n",
		new:  "",
		pkg:  "./workflows",
		run:  "TestThreadStopsATurn",
	},
	{
		name: "a workflow rests although a nudge came while its last turn ended",
		file: "workflows/thread.go",
		old:  `if more := t.nudged || t.wait(ctx); !more {`,
		new:  `if more := t.wait(ctx); !more {`,
		pkg:  "./workflows",
		run:  "TestThreadLooksOnceMore",
	},
	{
		name: "a workflow rests although a failed turn waits for its time",
		file: "workflows/thread.go",
		old:  "\tif retry > 0 {\n\t\ttimeout = retry",
		new:  "\tif retry < 0 {\n\t\ttimeout = retry",
		pkg:  "./workflows",
		run:  "TestThreadTriesAFailedTurn",
	},
}
