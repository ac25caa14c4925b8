package agent

// A Window says how long prompts may be. Where a prompt would be longer, the older part of the session is summarised: by
// model calls of their own, at round heads, each of at most one prompt's length, until it fits.
type Window struct {
	Tokens int     // the model's context window
	At     float64 // share of it above which a prompt is too long; the rest is for the answer, and for what estimates miss
	Keep   float64 // share of it that is kept word for word of the newest entries, less than At
}

// DefaultWindow suits most models. That of gpt-5-mini is larger: https://platform.openai.com/docs/models/gpt-5-mini
var DefaultWindow = Window{Tokens: 128_000, At: 0.75, Keep: 0.25}

// window is the model's, or what is left of it: a provider that has refused a prompt takes less than that.
func (l *Loop) window() float64 {
	w := float64(l.Spec.Window.Tokens)
	if refused := l.state.Counters.Refused; refused > 0 {
		w = min(w, float64(refused))
	}
	return w
}

// limit is how many tokens a prompt may have. Where no summary can be had some of what is set aside is used up first.
func (l *Loop) limit() float64 {
	at := l.Spec.Window.At
	if l.state.Counters.SummaryFailed {
		at = (at + 1) / 2
	}
	return at * l.window()
}
