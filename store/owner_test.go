package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/store"
	"bobbin/thread"
)

func TestEveryFunctionIsScopedToItsOwner(t *testing.T) {
	b := setup(t)
	require.NoError(t, b.db.EnsureKey(t.Context(), "mallory", "test", "bob_mallory"))
	r := b.start("hello")
	m := b.accept("one").Message
	failed := b.bundleOn(b.open()).start("fails")
	failed.end(broken())
	events := b.lastEvent()
	const mallory = "mallory"
	page := store.Page{Limit: 10}
	for name, call := range map[string]func() error{
		"Accept": func() error {
			in := b.incoming("two")
			in.OwnerID = mallory
			_, err := b.db.Accept(b.ctx(), in)
			return err
		},
		"Stop":             func() error { _, err := b.db.Stop(b.ctx(), mallory, b.thread, store.ScopeAll); return err },
		"Cancel":           func() error { _, err := b.db.Cancel(b.ctx(), mallory, r.ref.ID); return err },
		"Reset":            func() error { _, err := b.db.Reset(b.ctx(), mallory, b.thread); return err },
		"WithdrawSteering": func() error { _, err := b.db.WithdrawSteering(b.ctx(), mallory, b.thread); return err },
		"WithdrawMessage":  func() error { _, err := b.db.WithdrawMessage(b.ctx(), mallory, m.ID); return err },
		"Thread":           func() error { _, err := b.db.Thread(b.ctx(), mallory, b.thread); return err },
		"Turns":            func() error { _, err := b.db.Turns(b.ctx(), mallory, b.thread, page); return err },
		"Turn":             func() error { _, err := b.db.Turn(b.ctx(), mallory, r.ref.ID); return err },
		"Steps":            func() error { _, err := b.db.Steps(b.ctx(), mallory, r.ref.ID, 0, 10); return err },
		"Messages":         func() error { _, err := b.db.Messages(b.ctx(), mallory, b.thread, page); return err },
		"Replay":           func() error { _, err := b.db.Replay(b.ctx(), mallory, failed.ref.ID); return err },
	} {
		require.ErrorIs(t, call(), thread.ErrNotFound, name)
	}
	require.Equal(t, events, b.lastEvent())
	threads, err := b.db.Threads(b.ctx(), mallory, page)
	require.NoError(t, err)
	require.Empty(t, threads)
	backlog, err := b.db.Backlog(b.ctx(), mallory)
	require.NoError(t, err)
	require.Equal(t, store.Backlog{Failed: []thread.Turn{}}, backlog)

	in := b.incoming("mine", key("k"), b.to(store.Home))
	b.accept("hers", key("k"), channel("telegram"))
	in.OwnerID, in.Channel = mallory, "telegram"
	out, err := b.db.Accept(b.ctx(), in)
	require.NoError(t, err, "a key belongs to its owner")
	require.False(t, out.Repeated)
}

// bundleOn is the bundle of another thread of the same owner.
func (b *bundle) bundleOn(threadID string) *bundle {
	other := *b
	other.thread = threadID
	return &other
}

func TestThreadsAndTurnsArePagedNewestFirst(t *testing.T) {
	b := setup(t)
	ids := []string{b.thread, b.open(), b.open()}
	page, err := b.db.Threads(b.ctx(), owner, store.Page{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, []string{ids[2], ids[1]}, []string{page[0].ID, page[1].ID})
	page, err = b.db.Threads(b.ctx(), owner, store.Page{Limit: 2, Before: ids[1]})
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, ids[0], page[0].ID)
}

func TestKeysAreFoundByWhatTheyAre(t *testing.T) {
	b := setup(t)
	k, err := b.db.CreateKey(b.ctx(), owner, "laptop")
	require.NoError(t, err)
	got, err := b.db.OwnerOf(b.ctx(), k)
	require.NoError(t, err)
	require.Equal(t, owner, got)
	b.exec(`UPDATE api_keys SET revoked_at = clock_timestamp()`)
	for _, none := range []string{k, "", "bob_none"} {
		_, err = b.db.OwnerOf(b.ctx(), none)
		require.ErrorIs(t, err, thread.ErrUnauthorized)
	}
}
