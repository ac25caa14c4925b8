package llm

import (
	"bobbin/thread"
)

// price completes the usage of a reply, whole or cut off, to the prompt p: where the provider sent no count it is estimated
// from what was sent and what came. A reply without a model never began, and nobody bills it.
func (c *Client) price(r *thread.Reply, p thread.Prompt) {
	if r.Model == "" {
		return
	}
	if r.Usage.Tokens() == 0 {
		r.Usage, r.Estimated = thread.Usage{InputTokens: p.Estimate(), OutputTokens: r.Estimate()}, true
	}
	r.Usage.Cost = c.cfg.Prices.cost(r.Usage, c.cfg.Model, r.Model)
}

// A Bound is what a model call may cost.
type Bound struct {
	Model string
	Input thread.Usage // what it reads, estimated, and that part's cost
	Least thread.USD   // with the shortest answer that is worth asking for
	Most  thread.USD   // with the longest one
}

// Bound says what a call may cost that reads so many tokens.
func (c *Client) Bound(input int64) Bound {
	price, _ := c.cfg.Prices.find(c.cfg.Model)
	price = price.worst()
	b := Bound{Model: c.cfg.Model, Input: thread.Usage{InputTokens: tokens(input)}}
	b.Input.Cost = price.of(b.Input)
	most := c.mostOutput(input)
	b.Most = price.of(thread.Usage{InputTokens: input, OutputTokens: int64(most)})
	b.Least = price.of(thread.Usage{InputTokens: input, OutputTokens: int64(min(most, c.cfg.LeastOutputTokens))})
	return b
}

// MaxOutput is how many tokens a call may write so that it costs no more than granted, which is at least b.Least.
func (c *Client) MaxOutput(b Bound, granted thread.USD) int {
	price, _ := c.cfg.Prices.find(c.cfg.Model)
	most := c.mostOutput(b.Input.InputTokens)
	per := micro(price.worst().Output)
	if granted >= b.Most || per == 0 {
		return most
	}
	return min(most, int(int64(granted-b.Input.Cost)*1000/per))
}

// mostOutput is what a call with a reservation may write that reads so many tokens.
func (c *Client) mostOutput(input int64) int {
	most := lower(c.cfg.MaxOutputTokens, c.cfg.ReservedOutputTokens)
	if c.cfg.ContextTokens == 0 {
		return most
	}
	return int(min(int64(most), max(int64(c.cfg.ContextTokens)-input, int64(c.cfg.LeastOutputTokens))))
}
