// Package scripted is a model provider that plays scripts: an http.Handler that speaks OpenAI's chat completions,
// streaming and not, and refuses what the provider refuses, with the same bodies. Tests, benchmarks and the development
// server point the real client at it.
//
//	POST /v1/chat/completions   checked (Check), recorded (Requests), answered by a Play
//	GET  /v1/models             the names in Options.Models
//
// A Play looks at one request and says what to answer, and how: how slowly, with which error, cut off where, held at which
// gate. List plays a fixed list for each conversation; Server.On gives each of many tests that share a server a Play of its
// own; Demo is a small rule-based model that people can talk to.
//
// The server is at least as strict as OpenAI, and where other compatible providers are stricter, as strict as those: a
// session that passes here is stuck nowhere.
package scripted
