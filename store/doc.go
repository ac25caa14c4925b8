// Package store keeps everything that matters in Postgres, and decides everything there.
//
// # One operation, one transaction
//
// Accept, Take, Withdraw, Stop, End, Claim and Reset each are one transaction of two flushes (Take looks first, without a
// lock, whether anything waits; Reset reads once more for each turn that runs):
//
//	BEGIN; lock run row; lock steering row; read what they protect; lock the event counter   (one round trip)
//	  … decide, in Go, from what was read under the locks …
//	write; COMMIT                                                                            (one round trip)
//
// An operation that is given a turn's or a message's id looks up its thread first, one round trip more. One that changes
// nothing rolls back in its second.
//
// The lock order is always the same: run row, steering row, a background turn's own row, event counter. Each statement
// after a lock has a snapshot of its own, so what it reads is what the last holder of the lock committed; a join inside
// the locking statement would show what it was before the wait.
//
// # The fence
//
// Every other write of a turn starts with the fence: FOR SHARE on the run row (a background turn: its own row), and
// ErrFenced unless the turn still runs and is not stopping. Stop, End and Reset lock the same row, so nothing is
// written after them. Two holders of one turn share the fence; the event counter keeps them apart, so it is locked before
// what they decide from is read.
//
// # Waking others
//
// A transaction that wrote events or nudges says so after its commit, from one writer per process (see waker): NOTIFY
// inside the hot transactions would end Postgres's group commit. What a lost wake-up would have said is found by
// looking: subscribers look every two seconds, the relay reads the outbox, the sweep reads the turns.
package store
