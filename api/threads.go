package api

import (
	"github.com/gin-gonic/gin"

	"bobbin/store"
	"bobbin/thread"
)

// List is the form of every list.
type List[T any] struct {
	Data    []T  `json:"data"`     // never null
	HasMore bool `json:"has_more"` // another page follows
}

const (
	defaultPage = 100
	largestPage = 500
)

// param returns the id in the path. What cannot be an id names nothing.
func param(c *gin.Context, name string) (string, error) {
	id := c.Param(name)
	if !isID(id) {
		return "", thread.ErrNotFound
	}
	return id, nil
}

// page reads the parameters of a list that goes back in time. It asks for one entry more than the client wants.
func page(c *gin.Context) (store.Page, error) {
	q := newQuery(c, "limit", "before")
	p := store.Page{Limit: int(q.number("limit", defaultPage, 1, largestPage)) + 1, Before: q.id("before")}
	return p, mistaken(q.mistakes)
}

// newestFirst cuts off the entry that only says that there is more.
func newestFirst[T any](list []T, p store.Page) List[T] {
	more := len(list) == p.Limit
	if more {
		list = list[:p.Limit-1]
	}
	return List[T]{Data: append([]T{}, list...), HasMore: more}
}

func oldestFirst[T any](list []T, p store.Page) List[T] {
	more := len(list) == p.Limit
	if more {
		list = list[1:]
	}
	return List[T]{Data: append([]T{}, list...), HasMore: more}
}

func (a *api) openThread(c *gin.Context) (any, error) {
	data, err := a.readBody(c, true)
	if err != nil {
		return nil, err
	}
	f, err := parseForm(data)
	if err != nil {
		return nil, err
	}
	title := f.text("title", a.cfg.Limits.Title)
	if err := f.done(); err != nil {
		return nil, err
	}
	t, err := a.store.OpenThread(c.Request.Context(), owner(c), title)
	if err != nil {
		return nil, err
	}
	c.Header("Location", "/v1/threads/"+t.ID)
	return t, nil
}

func (a *api) listThreads(c *gin.Context) (any, error) {
	p, err := page(c)
	if err != nil {
		return nil, err
	}
	list, err := a.store.Threads(c.Request.Context(), owner(c), p)
	return newestFirst(list, p), err
}

func (a *api) getThread(c *gin.Context) (any, error) {
	id, err := param(c, "thread")
	if err != nil {
		return nil, err
	}
	return a.store.Thread(c.Request.Context(), owner(c), id)
}

// Stopped is what a stop, a cancel or a reset did.
type Stopped struct {
	Stopped   []string          `json:"stopped"`   // turns told to stop, and waiting ones cancelled
	Withdrawn *thread.Withdrawn `json:"withdrawn"` // what goes back to the composer; null: nothing
}

func stopped(s store.Stopped) Stopped {
	return Stopped{Stopped: append([]string{}, s.Turns...), Withdrawn: s.Withdrawn}
}

func (a *api) stop(c *gin.Context) (any, error) {
	defer a.metrics.timer("stop")()
	id, err := param(c, "thread")
	if err != nil {
		return nil, err
	}
	data, err := a.readBody(c, true)
	if err != nil {
		return nil, err
	}
	f, err := parseForm(data)
	if err != nil {
		return nil, err
	}
	scope := choice(f, "scope", store.ScopeConversation, store.ScopeAll)
	r := a.repeat(c, f)
	if err := f.done(); err != nil {
		return nil, err
	}
	out, err := a.store.Stop(c.Request.Context(), owner(c), id, scope, r)
	return replayed(c, r, stopped(out)), err
}

// repeat reads the Idempotency-Key of a request that gives something back.
func (a *api) repeat(c *gin.Context, f *form) *store.Repeat {
	key := c.GetHeader("Idempotency-Key")
	f.key(key, a.cfg.Limits.Key)
	return &store.Repeat{Key: key}
}

// replayed says of an answer whether it is that of an earlier request.
func replayed(c *gin.Context, r *store.Repeat, body any) any {
	if r.Known {
		c.Header("Idempotency-Replayed", "true")
	}
	return body
}

func (a *api) reset(c *gin.Context) (any, error) {
	id, r, err := a.bare(c, "thread")
	if err != nil {
		return nil, err
	}
	out, err := a.store.Reset(c.Request.Context(), owner(c), id, r)
	return replayed(c, r, stopped(out)), err
}

// bare reads a request that says all it has to say with its address and its Idempotency-Key.
func (a *api) bare(c *gin.Context, name string) (string, *store.Repeat, error) {
	id, err := param(c, name)
	if err != nil {
		return "", nil, err
	}
	data, err := a.readBody(c, true)
	if err != nil {
		return "", nil, err
	}
	f, err := parseForm(data)
	if err != nil {
		return "", nil, err
	}
	r := a.repeat(c, f)
	return id, r, f.done()
}

func (a *api) backlog(c *gin.Context) (any, error) {
	return a.store.Backlog(c.Request.Context(), owner(c))
}
