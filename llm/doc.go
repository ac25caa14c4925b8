// Package llm calls a language model behind any OpenAI-compatible address, streaming. It is the one place that knows the
// wire: callers hand it a thread.Prompt and get a thread.Reply or a *thread.ModelError.
//
//	thread.Prompt ──shape──▶ chat messages ──HTTP──▶ provider
//	                                                    │ data: {…}   (Server-Sent Events)
//	onText ◀──pieces── assembly ◀──────chunks───────────┘
//	                      │
//	                      └──Mend──▶ thread.Reply
//
// Three rules hold here and nowhere else:
//
//   - One call is one attempt. Whoever calls owns the retries.
//   - Whatever the session looks like, the request has a shape that providers accept (shape.go), so a conversation cannot
//     be stuck on a provider's 400.
//   - No error holds anything that was said: provider messages may quote the prompt, so only kind, status and code are kept.
//
// The request's types and the rules for reasoning models come from go-openai. The answer is read here, because the
// library's reader (v1.43.0) loses an error that follows a comment line or stands second in its object, cannot tell a
// broken stream from one that ended, drops Retry-After, and turns half a character into U+FFFD.
package llm
