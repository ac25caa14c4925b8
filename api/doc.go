// Package api is Bobbin's HTTP side: JSON under /v1, Server-Sent Events, and what an operator asks for (/healthz, /readyz,
// /metrics). It decides nothing: each route reads a request strictly, calls one operation of package store, and writes
// what came back. The nudge that follows a commit is the store's.
//
// # Requests
//
// Every /v1 route wants `Authorization: Bearer KEY`. Bodies are one JSON object in UTF-8, as application/json: unknown
// and repeated members, other types, trailing data and what Postgres cannot hold (NUL) are refused, all mistakes of a
// request in one answer. A body whose members are all optional may be left out. What is null counts as left out.
//
// A request that changes something is carried through once it has been read whole, even if its client goes away; a
// client that lost the answer to a message repeats it with the same Idempotency-Key.
//
// # Answers
//
// Lists are {"data": [...], "has_more": bool}. `limit` is 1 to 500 (default 100); `before` is the id of an entry, for what
// precedes it: threads and turns come newest first, messages oldest first, so there `before` is the first id of the page
// that follows in time. Steps are in order, and take `after`, a step's number.
//
// Errors are problem documents (RFC 9457) with a stable `code`; see problem.go for the table.
//
// # Events
//
// GET /v1/threads/{thread}/events starts after the event that Last-Event-ID (a header) or `after` (a parameter, where no
// header is given) names, 0 for the thread's first. Without either it starts with what happens next. A `gap` event says
// that what came before it can no longer be served: read the thread and its messages afresh.
//
// A stream of a thread's own id has sequence numbers as event ids. A stream of "home" has THREAD:SEQUENCE, and ends when
// that thread is reset, so that a client that reconnects meets the fresh thread with a `gap` and never takes one thread's
// number for another's.
package api
