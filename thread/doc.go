// Package thread holds the nouns of Bobbin and nothing that acts: threads, turns, messages, steps, the session that a
// model is shown, events, and the errors that callers match. It imports the standard library only.
//
// A thread is one conversation. A turn is one run of the agent in it. A message is what a person or the agent said; it
// is made of parts, one for each arrival. docs/state-machine.md draws how they move.
package thread
