package relay

import (
	"maps"
	"slices"
	"sync"

	"bobbin/store"
)

// A line holds nudges that are to be sent, and gives each owner's next in turn, so that one who has a thousand does not
// hold up one who has one.
type line struct {
	ready    chan struct{} // receive from it, then call next
	ownerMax int

	mu     sync.Mutex
	owners []string // those who have nudges here; who was served longest ago is first
	of     map[string][]store.Nudge
	held   map[int64]bool // outbox rows of the nudges in the line and of those being sent
}

// newLine makes a line for so many nudges, and so many of one owner.
func newLine(size, ownerMax int) *line {
	return &line{ready: make(chan struct{}, size), ownerMax: ownerMax, of: map[string][]store.Nudge{}, held: map[int64]bool{}}
}

// room is how many more nudges fit.
func (l *line) room() int { return cap(l.ready) - len(l.ready) }

// add does nothing where the nudge is here already, or does not fit: it stands in the outbox, or the next sweep finds its
// thread.
func (l *line) add(n store.Nudge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.of[n.OwnerID]
	if len(own) >= l.ownerMax || l.held[n.ID] {
		return
	}
	select {
	case l.ready <- struct{}{}:
	default:
		return
	}
	if len(own) == 0 {
		l.owners = append(l.owners, n.OwnerID)
	}
	l.of[n.OwnerID] = append(own, n)
	if n.ID != 0 {
		l.held[n.ID] = true
	}
}

// letGo says that a nudge is no longer being sent. Where it did not go out, the outbox has it again.
func (l *line) letGo(n store.Nudge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, n.ID)
}

// rows are the outbox rows of all nudges that wait here or are being sent.
func (l *line) rows() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.held))
}

func (l *line) next() store.Nudge {
	l.mu.Lock()
	defer l.mu.Unlock()
	owner := l.owners[0]
	l.owners = l.owners[1:]
	own := l.of[owner]
	if len(own) == 1 {
		delete(l.of, owner)
	} else {
		l.of[owner] = own[1:]
		l.owners = append(l.owners, owner)
	}
	return own[0]
}
