package relay

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/store"
)

// served takes n nudges and returns whose they were, in order.
func served(l *line, n int) string {
	var owners []string
	for range n {
		<-l.ready
		owners = append(owners, l.next().OwnerID)
	}
	return strings.Join(owners, "")
}

func TestEachOwnerIsServedInTurnHoweverManyNudgesOneHas(t *testing.T) {
	t.Parallel()
	l := newLine(100, 100)
	for _, o := range strings.Split("aaaaab", "") {
		l.add(store.Nudge{OwnerID: o})
	}
	require.Equal(t, "ab", served(l, 2))
	l.add(store.Nudge{OwnerID: "c"})
	l.add(store.Nudge{OwnerID: "b"})
	require.Equal(t, "acbaaa", served(l, 6))
	require.Empty(t, l.of)
	require.Empty(t, l.owners)
}

func TestOneOwnersNudgesStayInTheirOrder(t *testing.T) {
	t.Parallel()
	l := newLine(100, 100)
	var want []int64
	for id := range int64(5) {
		l.add(store.Nudge{ID: id, OwnerID: "a"})
		want = append(want, id)
	}
	var got []int64
	for range want {
		<-l.ready
		got = append(got, l.next().ID)
	}
	require.True(t, slices.Equal(want, got), "%v", got)
}

func TestALineDropsWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	l := newLine(5, 3)
	for _, o := range strings.Split("aaaabbbc", "") {
		l.add(store.Nudge{OwnerID: o})
	}
	require.Zero(t, l.room())
	require.Equal(t, "ababa", served(l, 5))
	require.Equal(t, 5, l.room())
}

func TestANudgeThatIsHereOrBeingSentIsNotTakenAgain(t *testing.T) {
	t.Parallel()
	l := newLine(100, 100)
	n := store.Nudge{ID: 7, OwnerID: "a"}
	l.add(n)
	l.add(n)
	require.Equal(t, []int64{7}, l.rows())
	require.Equal(t, "a", served(l, 1))
	l.add(n)
	require.Empty(t, l.ready, "it is being sent")
	l.letGo(n)
	require.Empty(t, l.rows())
	l.add(n)
	require.Len(t, l.ready, 1, "it did not go out, and the outbox has it again")
	l.add(store.Nudge{OwnerID: "a"})
	l.add(store.Nudge{OwnerID: "a"})
	require.Len(t, l.ready, 3, "the sweep's have no row")
}
