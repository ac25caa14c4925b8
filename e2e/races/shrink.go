package races

import (
	"slices"
	"time"
)

// shrink cuts a plan that fails, as long as what is left still fails, until no cut does or the time is over. fails may err to
// the side of false: what a race needs does not always come about.
func shrink(p plan, fails func(plan) bool, until time.Time) plan {
	for progress := true; progress; {
		progress = false
		for candidate := range p.cuts {
			if time.Now().After(until) {
				return p
			}
			if fails(candidate) {
				p, progress = candidate, true
				break
			}
		}
	}
	return p
}

// cuts yields what is left of a plan after each cut that is worth a try, the large ones first: halves of the places, single
// places and clients, halves of a client's steps, single steps, words, pauses.
func (p plan) cuts(yield func(plan) bool) {
	_ = p.cutPlaces(yield) && p.cutClients(yield) && p.cutSteps(yield) && p.cutWords(yield)
}

// pieces yields the parts of a list of n that are worth leaving out: halves, quarters and so on down to one.
func pieces(n int, yield func(from, to int) bool) bool {
	for size := n / 2; size > 0; size /= 2 {
		for from := 0; from < n; from += size {
			if !yield(from, min(from+size, n)) {
				return false
			}
		}
	}
	return true
}

func (p plan) cutPlaces(yield func(plan) bool) bool {
	return pieces(len(p.Places), func(from, to int) bool {
		q := p.clone()
		q.Places = slices.Delete(q.Places, from, to)
		return yield(q)
	})
}

func (p plan) cutClients(yield func(plan) bool) bool {
	for i, at := range p.Places {
		for j := range at.Clients {
			if len(at.Clients) < 2 {
				break // that is the place
			}
			q := p.clone()
			q.Places[i].Clients = slices.Delete(q.Places[i].Clients, j, j+1)
			if !yield(q) {
				return false
			}
		}
	}
	return true
}

func (p plan) cutSteps(yield func(plan) bool) bool {
	for i, at := range p.Places {
		for j, c := range at.Clients {
			if !pieces(len(c.Steps), func(from, to int) bool {
				q := p.clone()
				steps := &q.Places[i].Clients[j].Steps
				*steps = slices.Delete(*steps, from, to)
				return yield(q)
			}) {
				return false
			}
		}
	}
	return true
}

func (p plan) cutWords(yield func(plan) bool) bool {
	for i, at := range p.Places {
		for j, c := range at.Clients {
			for k, s := range c.Steps {
				for w := range s.With {
					q := p.clone()
					with := &q.Places[i].Clients[j].Steps[k].With
					if *with = slices.Delete(*with, w, w+1); !yield(q) {
						return false
					}
				}
				if s.Pause > 0 {
					q := p.clone()
					if q.Places[i].Clients[j].Steps[k].Pause = 0; !yield(q) {
						return false
					}
				}
			}
		}
	}
	return true
}

func (p plan) clone() plan {
	p.Places = slices.Clone(p.Places)
	for i := range p.Places {
		at := &p.Places[i]
		at.Clients = slices.Clone(at.Clients)
		for j := range at.Clients {
			c := &at.Clients[j]
			c.Steps = slices.Clone(c.Steps)
			for k := range c.Steps {
				c.Steps[k].With = slices.Clone(c.Steps[k].With)
			}
		}
	}
	return p
}

// only is what is left of a plan at one place.
func (p plan) only(n int) plan {
	q := p.clone()
	q.Places = slices.DeleteFunc(q.Places, func(at place) bool { return at.N != n })
	return q
}
