package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/store"
)

// Postgres's clock is set back by an hour: all that was written stands ahead of it.
func TestAClockThatIsSetBackReordersNothingAndTakesNoTimeFromATurn(t *testing.T) {
	b := setup(t)
	r := b.start("one")
	b.exec(`UPDATE turns SET created_at = created_at + interval '1 hour', driven_at = driven_at + interval '1 hour', limit_since = limit_since + interval '1 hour'`)
	b.exec(`UPDATE messages SET created_at = created_at + interval '1 hour'`)
	b.exec(`UPDATE events SET created_at = created_at + interval '1 hour'`)
	require.Zero(t, r.load().Counters.Elapsed)
	b.accept("two")
	require.NotEmpty(t, r.take())
	r.answer("done")
	list, err := b.db.Messages(b.ctx(), owner, b.thread, store.Page{Limit: 10})
	require.NoError(t, err)
	var texts []string
	for _, m := range list {
		texts = append(texts, m.Text)
	}
	require.Equal(t, []string{"one", "two", "done"}, texts)
}
