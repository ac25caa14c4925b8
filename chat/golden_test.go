package chat

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"bobbin/thread"
)

var update = flag.Bool("update", false, "rewrite what the conversations show")

// Each file of testdata is a conversation: why it is there, what happens, and what the screen shows and the server is
// asked. play has the words.
func TestConversations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			in, want, ok := strings.Cut(string(raw), "-- out --\n")
			require.True(t, ok)
			_, script, ok := strings.Cut(in, "-- in --\n")
			require.True(t, ok)
			got := play(t, script)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(in+"-- out --\n"+got), 0o600))
				return
			}
			require.Empty(t, cmp.Diff(want, got))
		})
	}
}

// player feeds a screen by hand. What it asks of the server waits for an answer.
type player struct {
	*testing.T
	s       *screen
	out     strings.Builder
	asked   []tea.Cmd
	answers chan answer
	seq     int64

	messages []*thread.Message
	steps    []*thread.Step
}

type answer struct {
	status int // 0: the answer is lost
	body   string
}

func play(t *testing.T, script string) string {
	p := &player{T: t, answers: make(chan answer, 10)}
	c := &Client{
		BaseURL: "http://server", HTTP: &http.Client{Transport: p},
		Wait: func(context.Context, int) error { p.out.WriteString("again\n"); return nil },
	}
	p.s = newScreen(t.Context(), c, "home")
	p.s.style, p.s.stream = plainStyles(), c.Stream(t.Context(), "thr", 0)
	keys := 0
	p.s.newKey = func() string { keys++; return "key" + strconv.Itoa(keys) }
	p.s.resize(60, 12)
	for line := range strings.Lines(script) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if word != "" {
			p.act(word, rest)
		}
	}
	return p.out.String()
}

func (p *player) act(word, rest string) {
	switch word {
	case "size":
		var w, h int
		_, err := fmt.Sscan(rest, &w, &h)
		require.NoError(p, err)
		p.s.Update(tea.WindowSizeMsg{Width: w, Height: h})
	case "message":
		p.messages = append(p.messages, decode[thread.Message](p, rest))
	case "step":
		p.steps = append(p.steps, decode[thread.Step](p, rest))
	case "load":
		th := decode[thread.Thread](p, rest)
		p.seq = th.LastEvent
		p.s.talk.load(th, p.messages, p.steps)
	case "event":
		name, data, _ := strings.Cut(rest, " ")
		p.seq++
		e := thread.Event{ThreadID: "thr", Seq: p.seq, Name: thread.EventName(name), Data: []byte(data)}
		e.TurnID = decode[struct {
			TurnID string `json:"turn_id"`
		}](p, data).TurnID
		p.ask(p.s.happened(eventsMsg{stream: p.s.stream, list: []thread.Event{e}}))
	case "lost":
		p.s.talk.lost = rest
	case "type":
		text, err := strconv.Unquote(`"` + rest + `"`)
		require.NoError(p, err)
		p.s.Update(tea.PasteMsg{Content: text})
	case "key":
		p.key(rest)
	case "answer":
		p.answer(rest)
	case "show":
		p.show()
	default:
		p.Fatalf("unknown word %q", word)
	}
}

func decode[T any](t *player, s string) *T {
	var v T
	require.NoError(t, json.Unmarshal([]byte(s), &v), s)
	return &v
}

var keyCodes = map[string]tea.KeyPressMsg{
	"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "ctrl+w": {Code: 'w', Mod: tea.ModCtrl},
	"alt+enter": {Code: tea.KeyEnter, Mod: tea.ModAlt}, "pgup": {Code: tea.KeyPgUp}, "pgdown": {Code: tea.KeyPgDown},
	"backspace": {Code: tea.KeyBackspace},
}

func (p *player) key(name string) {
	k, ok := keyCodes[name]
	require.True(p, ok, name)
	typed := name == "alt+enter" || name == "backspace"
	_, cmd := p.s.Update(k)
	if !typed { // else it is the cursor that wants to blink
		p.ask(cmd)
	}
}

func (p *player) ask(cmd tea.Cmd) {
	if cmd != nil {
		p.asked = append(p.asked, cmd)
	}
}

// answer lets what was asked first go out, and answers it: STATUS BODY, or "lost" once for each try before that.
func (p *player) answer(list string) {
	for list != "" {
		if rest, ok := strings.CutPrefix(list, "lost"); ok {
			p.answers <- answer{}
			list = strings.TrimSpace(rest)
			continue
		}
		status, body, _ := strings.Cut(list, " ")
		code, err := strconv.Atoi(status)
		require.NoError(p, err)
		p.answers <- answer{code, body}
		list = ""
	}
	require.NotEmpty(p, p.asked, "nothing was asked")
	cmd := p.asked[0]
	p.asked = p.asked[1:]
	msg := cmd()
	if batch, ok := msg.(tea.BatchMsg); ok {
		p.asked = append(batch[1:], p.asked...)
		msg = batch[0]()
	}
	_, cmd = p.s.Update(msg)
	p.ask(cmd)
}

// RoundTrip is the server.
func (p *player) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	fmt.Fprintf(&p.out, "%s %s %s %s\n", r.Method, r.URL.Path, body, r.Header.Get("Idempotency-Key"))
	select {
	case a := <-p.answers:
		if a.status == 0 {
			return nil, errors.New("connection reset")
		}
		return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader(a.body))}, nil
	default:
		p.Fatal("more was asked than answered")
		return nil, nil
	}
}

func (p *player) show() {
	p.out.WriteString("┌\n")
	for line := range strings.Lines(ansi.Strip(p.s.content()) + "\n") {
		p.out.WriteString(strings.TrimRight("│ "+line, " \n") + "\n")
	}
	p.out.WriteString("└\n")
}
