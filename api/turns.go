package api

import (
	"math"

	"github.com/gin-gonic/gin"

	"bobbin/store"
)

func (a *api) listTurns(c *gin.Context) (any, error) {
	id, err := param(c, "thread")
	if err != nil {
		return nil, err
	}
	p, err := page(c)
	if err != nil {
		return nil, err
	}
	list, err := a.store.Turns(c.Request.Context(), owner(c), id, p)
	return newestFirst(list, p), err
}

func (a *api) getTurn(c *gin.Context) (any, error) {
	id, err := param(c, "turn")
	if err != nil {
		return nil, err
	}
	return a.store.Turn(c.Request.Context(), owner(c), id)
}

func (a *api) listSteps(c *gin.Context) (any, error) {
	id, err := param(c, "turn")
	if err != nil {
		return nil, err
	}
	q := newQuery(c, "limit", "after")
	limit := int(q.number("limit", defaultPage, 1, largestPage)) + 1
	after := int(q.number("after", 0, 0, math.MaxInt32))
	if err := mistaken(q.mistakes); err != nil {
		return nil, err
	}
	list, err := a.store.Steps(c.Request.Context(), owner(c), id, after, limit)
	return newestFirst(list, store.Page{Limit: limit}), err
}

func (a *api) cancel(c *gin.Context) (any, error) {
	id, r, err := a.bare(c, "turn")
	if err != nil {
		return nil, err
	}
	out, err := a.store.Cancel(c.Request.Context(), owner(c), id, r)
	return replayed(c, r, stopped(out)), err
}

func (a *api) replay(c *gin.Context) (any, error) {
	id, _, err := a.bare(c, "turn") // a replay under way is 409: no key is needed
	if err != nil {
		return nil, err
	}
	return a.store.Replay(c.Request.Context(), owner(c), id)
}
