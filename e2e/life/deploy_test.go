package life

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/e2e/tally"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// Another build is rolled out again and again while turns run: for a while both are alive, then the old one is told to end or is
// killed. Its turns are finished by the new one. What a history of an older version asks of the new code is another test's:
// workflows/history_test.go replays those of every released version.
func TestBuildAfterBuildIsRolledOutInTheMiddleOfTurns(t *testing.T) {
	t.Parallel()
	deploys, chats := tally.Pick(2, 40), tally.Pick(3, 12)
	book := tally.Keep(t, "deploys")
	h := house.Open(t, "BOBBIN_WORKER_VERSIONING=auto", "BOBBIN_RATE_LIMIT=0", "BOBBIN_HEARTBEAT_TIMEOUT=3s", "BOBBIN_MODEL_CONTEXT_TOKENS=1000000")
	h.Migrate()
	h.API()
	h.Model.Keep(200)
	old := rollOut(h, 0)

	list := make([]*talker, chats)
	for i := range list {
		k := &talker{said: make(chan struct{}), quit: make(chan struct{}), done: make(chan error, 1)}
		k.Chat = h.Chat(func(r scripted.Request) scripted.Reply {
			if n := len(r.Results()); n > 0 && len(r.News()) == 0 {
				return scripted.Reply{Pieces: []string{"All ", "of ", "it."}}
			}
			return house.Ask([]string{"look", "put"}[len(r.Messages)%2], fmt.Sprintf("%s%d", r.Conversation(), len(r.Messages)))
		})
		list[i] = k
		go func() { k.done <- k.talk() }()
	}
	kills := 0
	for n := range deploys {
		for _, k := range list {
			k.busy()
		}
		next := rollOut(h, n+1)
		for _, k := range list {
			k.busy()
		}
		if n%2 == 1 {
			kills++
			old.Kill()
		} else {
			old.Terminate()
			require.Zero(t, old.WaitEnd())
		}
		old = next
	}
	row := tally.Row{Runs: deploys, Kills: kills, Figures: map[string]string{"deploys in the middle of turns": fmt.Sprintf("%d, of which %d killed the old build", deploys, kills)}}
	for _, k := range list {
		close(k.quit)
	}
	for _, k := range list {
		require.NoError(t, <-k.done)
		k.Idle()
		k.Answered(k.Send("and at last?").TurnID)
		row.Operations += len(k.texts)
		for i, text := range k.texts {
			switch times := k.Times(text); {
			case times == 0:
				row.Lost++
			case times > 1:
				row.Doubled++
			case i > 0 && k.place(text) < k.place(k.texts[i-1]):
				row.Reordered++
			}
		}
		k.CheckReplies()
		k.CheckCalls()
		k.CheckOrder()
	}
	book.Add(row)
	require.Zero(t, row.Wrong(), "%+v", row)
}

// rollOut starts a worker of the nth build, which becomes the current one, and waits until it is.
func rollOut(h *house.House, n int) *house.Process {
	h.T.Helper()
	build := fmt.Sprintf("build-%d", n)
	w, url := h.Operated("BOBBIN_BUILD_ID=" + build)
	h.Ready(url)
	h.Until(build+" to be current", func() bool {
		p := h.Start("deploy")
		require.Zero(h.T, p.WaitEnd(), p.LogText())
		return regexp.MustCompile(`(?m)^` + build + `\s+current`).MatchString(p.LogText())
	})
	return w
}

// A talker sends a turn, and a line while it runs, over and over.
type talker struct {
	*house.Chat
	texts []string
	said  chan struct{} // can be received from while a turn runs
	quit  chan struct{}
	done  chan error
}

// busy waits until a turn of the talker has begun.
func (k *talker) busy() {
	k.T.Helper()
	select {
	case <-k.said:
	case err := <-k.done:
		k.T.Fatalf("a talker ended: %v", err)
	}
}

func (k *talker) talk() error {
	for {
		first := fmt.Sprintf("m%d;", len(k.texts))
		a, err := k.TrySend(k.Marker + " " + first)
		if err != nil {
			return err
		}
		k.texts = append(k.texts, first)
		line := fmt.Sprintf("m%d;", len(k.texts))
		if _, err := k.TrySend(line); err != nil {
			return err
		}
		k.texts = append(k.texts, line)
		select {
		case k.said <- struct{}{}:
		case <-k.quit:
			return nil
		default:
		}
		if _, err := k.Watch.Await(func(e house.Event) bool {
			return e.TurnID == a.TurnID && (e.Name == thread.EventTurnSucceeded || e.Name == thread.EventTurnFailed)
		}); err != nil {
			return err
		}
	}
}

// place is where a text stands in the conversation.
func (k *talker) place(text string) int {
	for i, m := range k.Messages() {
		if m.Role == thread.RoleUser && tag.MatchString(m.Text) && containsTag(m.Text, text) {
			return i
		}
	}
	return -1
}

func containsTag(text, want string) bool {
	for _, t := range tag.FindAllString(text, -1) {
		if t == want {
			return true
		}
	}
	return false
}
