// Package agent is the agent loop, once, without a clock, a network, Temporal or SQL: a function over functions. Chat
// turns, background turns, a research lead and researchers differ in Spec and Hooks only.
//
//	┌► open calls? ── run them ── some must run elsewhere ──────────► Outside
//	│      │
//	│  round head ── hand back? ────────────────────────────────────► HandBack
//	│      │ take: load the message that waits (rounds with tools only)
//	│      │ too long? ── summarise the older part, keep the summary ─► round head
//	│      │ model: up to three retries of a temporary error ── long ► Wait
//	│      │                                                 ── else ► Failed
//	│  commit the round ── the session has moved: load, build again
//	│      │
//	└──────┴── answer ──────────────────────────────────────────────► Answered
package agent
