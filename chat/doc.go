// Package chat is the terminal client: it shows one thread, sends what is typed, and lets a message that waits be taken
// back. It knows the server over HTTP alone.
//
//	client.go, stream.go   the API, typed; an event stream that comes back by itself
//	talk.go                what the thread shows, from history and events; no terminal, no clock, no network
//	screen.go              the bubbletea program around it
//	lines.go               the same without a terminal: lines in, answers out
//
// A message is shown as waiting until the event says that it was loaded, and then at the place where the model read it.
// Whatever is taken back, by key, by stop, or because the server refused it, goes into the input line above what is being
// typed. The event of the withdrawal carries the text too, so a lost answer loses nothing.
package chat
