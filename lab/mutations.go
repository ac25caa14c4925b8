package main

// mutations are what breaks, from accept to end. Each is written against the text as it is: where that changes, a test says
// which is to be written anew. A mutation that leaves another guard standing shows nothing, so each takes away the one that
// its tests are about.
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
		run: "TestEveryRaceOfThePage",
	},
	{
		name: "a repeated delivery is taken for another message",
		file: "store/accept.go",
		old:  "\tif a.in.Key == \"\" {\n\t\treturn\n\t}",
		new:  "\tif a.in.Key != \"none that is so called\" {\n\t\treturn\n\t}",
		pkg:  "./store",
		run:  "TestAcceptTheSameKey|TestEveryRaceOfThePage",
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
		run: "TestEveryRaceOfThePage",
	},
	{
		name: "a take does not look whether its turn was told to stop",
		file: "store/take.go",
		old:  `h.runningID != turnID || h.stopping || h.archived`,
		new:  `h.runningID != turnID || h.archived`,
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage",
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
		run:  "TestEveryRaceOfThePage",
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
		run:  "TestMessagesStandInTheOrder|TestFiveMessages|TestWhateverHappens",
	},
	{
		name: "a claim starts the next turn beside the one that runs",
		file: "store/claim.go",
		old:  "\tif h.runningID != \"\" {\n\t\treturn &h.running.Turn",
		new:  "\tif h.runningID != \"\" && h.head == nil {\n\t\treturn &h.running.Turn",
		pkg:  "./store",
		run:  "TestEveryOperationInEveryState",
	},
	{
		name: "a withdrawal after the take gives the text back",
		file: "store/withdraw.go",
		old:  `case m.State == thread.MessageDelivered:`,
		new:  `case m.State == thread.MessageDelivered && h.runningID == "":`,
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage|TestWithdrawTwice",
	},
	{
		name: "a stop leaves what waits to be loaded",
		file: "store/stop.go",
		old:  "\tif s.steering != nil {\n\t\ts.out.give(",
		new:  "\tif s.steering != nil && s.runningID == \"\" {\n\t\ts.out.give(",
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage|TestStopScopes",
	},
	{
		name: "a stop raises no flag",
		file: "store/stop.go",
		old:  `UPDATE runs SET stopping = true WHERE thread_id = $1`,
		new:  `UPDATE runs SET stopping = stopping WHERE thread_id = $1`,
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage|TestStopScopes",
	},
	{
		name: "an end does not look at the steering row",
		file: "store/end.go",
		old:  `if e.steering != nil && e.turn.Status != thread.TurnQueued {`,
		new:  `if e.steering != nil && e.turn.Status == thread.TurnRunning {`,
		pkg:  "./store",
		run:  "TestEveryRaceOfThePage|TestFollowUp",
	},
	{
		name: "a repeated end ends the turn once more",
		file: "store/end.go",
		old:  `if e.turn.Status != thread.TurnRunning || e.turn.Attempt != attempt {`,
		new:  `if e.turn.Status == thread.TurnQueued {`,
		pkg:  "./store",
		run:  "TestEndRepeated|TestEveryRaceOfThePage",
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
		run:  "TestSubscribersSee|TestTwoHolders",
	},
	{
		name: "a round is written on a session that has moved on",
		file: "store/round.go",
		old:  `at.end != r.Base || at.rounds != r.N-1`,
		new:  `at.rounds != r.N-1`,
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
		run:  "TestStartCallTwice|TestStartedCall|TestOutcomeThatComes",
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
		name: "a tool with side effects is retried as one that only reads",
		file: "activities/calls.go",
		old:  `} else if ok && t.SideEffects() && c.State.Open() {`,
		new:  `} else if ok && t.Name == "" && c.State.Open() {`,
		pkg:  "./e2e",
		run:  "TestAWorkerThatIsKilled/InASideEffect",
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
		run:  "TestThreadEndsAStoppedTurn|TestThreadStopsATurn",
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
