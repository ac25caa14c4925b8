package thread

// BytesPerToken is what an estimate counts a token for, where no provider has counted. English has about four, code, numbers and
// other languages have less (https://help.openai.com/en/articles/4936856-what-are-tokens-and-how-to-count-them): rather too
// many tokens than too few.
const BytesPerToken = 3

const (
	perItem    = 8    // tokens that roles and separators add to a message, a call or a tool
	perPicture = 1600 // a large one, https://docs.anthropic.com/en/docs/build-with-claude/vision (evaluate image size)
)

// Estimate returns about how many tokens a text has.
func Estimate(s string) int64 { return int64((len(s) + BytesPerToken - 1) / BytesPerToken) }

// Estimate returns about how many tokens the model reads for the entry. What it thought is not sent back to it.
func (e Entry) Estimate() int64 {
	n := perItem + Estimate(e.Text)
	for _, c := range e.Calls {
		n += 2*perItem + Estimate(c.Name) + Estimate(c.Arguments) + Estimate(c.Result)
	}
	for _, f := range e.Files {
		if n += 4*perItem + Estimate(f.Name) + Estimate(f.Text) + Estimate(f.Note); len(f.Image) > 0 {
			n += perPicture
		}
	}
	return n
}

// Estimate returns about how many tokens the model reads for the prompt.
func (p Prompt) Estimate() int64 {
	n := perItem + Estimate(p.System)
	for _, t := range p.Tools {
		n += perItem + Estimate(t.Name) + Estimate(t.Description) + Estimate(string(t.Parameters))
	}
	for _, e := range p.Entries {
		n += e.Estimate()
	}
	return n
}

// Estimate returns about how many tokens the model wrote.
func (r Reply) Estimate() int64 {
	n := Estimate(r.Text) + Estimate(r.Reasoning)
	for _, c := range r.Calls {
		n += Estimate(c.Name) + Estimate(c.Arguments)
	}
	return n
}
