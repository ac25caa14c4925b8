// Package races holds Bobbin against a small model of itself, while random clients race each other on the real binary.
//
// A plan is drawn from a seed before a run starts: people at threads, each with steps to take and pauses between them. They
// send, steer, interrupt, withdraw, stop, cancel, replay and reset, under keys, twice at once, or over lines that break; the
// model and the tools take random time and fail now and then. At rest each thread gets one last message, whose request shows
// all that the model has; then everything is gathered: what each client was told and when, the threads' events, their pages,
// the requests at the provider, and the calls at a tool with side effects.
//
// # What is exact
//
// A truth is DESIGN's sections 3 to 6 as a value: run row, steering row, waiting turns, messages. The events of a thread are
// cut into the transactions that wrote them, and replayed through the truth in the order of their numbers. Each must be
// exactly the events that one operation causes in that state, no more and no fewer:
//
//   - an accept, found by its idempotency key, with the disposition, message and turn that its client was told;
//   - a withdrawal, stop, cancel, reset or replay that a client asked for, with what it was told and got back;
//   - a take, the end of the running turn with its follow-up and the next claim, or a claim.
//
// Each of these happened while a request for it was under way, by the clock of the one machine. An answer that changed
// nothing, a refusal for one, must be right for some state that held during the request. So every answer is that of a serial
// order which the events name, and which keeps each client's own order. A turn without a cause, a follow-up where nothing
// waited, a take behind a stop, a call that was done twice: none of these has an operation that explains it.
//
// Beside the truth, and without it: each accepted part is delivered or given back, once, to one client; each request shows
// the first of what was delivered, whole, in its order and nothing else; nothing that was withdrawn is in any request; parts
// stand in the order of their acceptance but for those of interrupts; the page shows what the model was shown; a turn has one
// reply at most; calls and results are paired; a tool with side effects is called once for each call of the model.
//
// # What is not
//
// Which of two calls that would do and say the same was the one; the state, text and parts in an accept's answer; the limits,
// spending, retries of a failed turn (no channel of the API has them) and background turns; the texts of notes to the model.
// store/property_test.go has the other channels, and e2e the stories of single faults.
package races
