package api

import (
	"time"

	"github.com/gin-gonic/gin"

	"bobbin/store"
	"bobbin/thread"
)

// usageView is what an owner's model calls of a month used, and what the limit leaves.
type usageView struct {
	Month     string             `json:"month"` // 2026-11
	Limit     *thread.USD        `json:"limit_usd"`
	Spent     thread.USD         `json:"spent_usd"`
	Reserved  thread.USD         `json:"reserved_usd"`
	Remaining *thread.USD        `json:"remaining_usd"` // null without a limit
	ResetsAt  time.Time          `json:"resets_at"`
	Models    []store.ModelUsage `json:"models"`
}

const monthForm = "2006-01"

func (a *api) usage(c *gin.Context) (any, error) {
	q := newQuery(c, "month")
	month := q.month("month")
	if err := mistaken(q.mistakes); err != nil {
		return nil, err
	}
	u, err := a.store.Usage(c.Request.Context(), owner(c), month)
	if err != nil {
		return nil, err
	}
	view := usageView{
		Month: u.Month.Format(monthForm), Limit: u.Spending.Limit, Spent: u.Spending.Spent, Reserved: u.Spending.Reserved,
		ResetsAt: u.Spending.Resets, Models: u.Models,
	}
	if u.Spending.Limit != nil {
		left := u.Spending.Remaining()
		view.Remaining = &left
	}
	return view, nil
}

// month reads a parameter such as 2026-11; left out: the zero time.
func (q *query) month(name string) time.Time {
	s, ok := q.c.GetQuery(name)
	if !ok {
		return time.Time{}
	}
	at, err := time.Parse(monthForm, s)
	if err != nil || at.Year() < 2000 || at.AddDate(0, 1, 0).Year() > 9999 { // resets_at has four digits for its year
		q.wrong(name, CodeInvalidField, 0, "must be a month such as 2026-11, from 2000-01 on")
		return time.Time{}
	}
	return at
}
