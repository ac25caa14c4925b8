// Package e2e holds tests of the whole house: the real binary, real Postgres, real Temporal, and a scripted model provider
// that is as strict as a real one. Processes are killed, stopped and cut off where it hurts most; what must hold is read
// from what the provider was sent, from the event stream, and from the conversation as the API shows it.
//
// A test opens a house, which has a database and a Temporal namespace of its own, and starts as many API and worker
// processes in it as its story needs. Nothing sleeps for luck: every wait is for an event, a request at the provider or a
// row, and ends after patience with the state of everything.
package e2e
