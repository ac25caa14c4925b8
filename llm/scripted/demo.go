package scripted

import (
	"crypto/sha256"
	_ "embed" // the demo's texts
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// DemoTool is the slow, read-only tool that the demo works with where it is offered. Its arguments are
// {"task": string, "seconds": number}: it is to wait that long and say that the task is done.
const DemoTool = "demo_work"

// The demo's pace: as fast as a good typist reads aloud, so that answers can be watched.
const (
	demoDelay = 300 * time.Millisecond
	demoPace  = 25 * time.Millisecond
	slowPace  = 80 * time.Millisecond
)

var (
	//go:embed demo/help.md
	demoHelp string
	//go:embed demo/long.md
	demoLong string
	//go:embed demo/steps.md
	demoSteps string
)

// Demo returns a small rule-based model for people to talk to; demo/help.md says what it understands. It decides from the
// request alone, so it may be asked by several processes and asked again. (The one exception: it remembers which request it
// has failed once, for "flaky".)
func Demo() Play {
	d := &demo{failed: map[[sha256.Size]byte]bool{}}
	return func(r Request) Reply {
		reply := d.answer(turnOf(r))
		if reply.Delay == 0 {
			reply.Delay = demoDelay
		}
		if reply.TokenDelay == 0 {
			reply.TokenDelay = demoPace
		}
		return reply
	}
}

type demo struct {
	mu     sync.Mutex
	failed map[[sha256.Size]byte]bool
}

// A demoRule answers a turn whose ask matches.
type demoRule struct {
	match  *regexp.Regexp
	answer func(*demo, turn) Reply
}

var demoRules = []demoRule{
	{regexp.MustCompile(`(?i)^\W*fail\W*$`), (*demo).fail},
	{regexp.MustCompile(`(?i)^\W*flaky\W*$`), (*demo).flaky},
	{regexp.MustCompile(`(?i)^\W*(help|hello|hi|hey|start|\?|what can you do)\W*$`), (*demo).help},
	{regexp.MustCompile(`(?i)^\W*(list |show |use |what |which )?(your )?tools\W*$`), (*demo).tools},
	{regexp.MustCompile(`(?i)\blong (answer|text|story)\b`), (*demo).long},
	{regexp.MustCompile(`(?i)^\W*count (up )?to \d+`), (*demo).count},
	{regexp.MustCompile(`(?i)\bwhat (did|have) i (say|said|write|written)\b`), (*demo).recall},
	{regexp.MustCompile(`(?is)^\W*call \S+`), (*demo).call},
	{regexp.MustCompile(`(?i)\bfetch\b.*https?://`), (*demo).fetch},
	{asksForWork, (*demo).work},
}

var asksForWork = regexp.MustCompile(`(?i)\b(research|investigate|work|slowly)\b`)

func (d *demo) answer(t turn) Reply {
	if t.wantsSummary() {
		return Say(t.summary())
	}
	for _, rule := range demoRules {
		if rule.match.MatchString(t.ask) {
			return rule.answer(d, t)
		}
	}
	return d.echo(t)
}

func (d *demo) help(turn) Reply { return Say(demoHelp) }

func (d *demo) long(turn) Reply { return Reply{Text: demoLong, TokenDelay: slowPace} }

func (d *demo) fail(turn) Reply { return Reply{Status: http.StatusInternalServerError} }

// flaky answers 429 once to each request.
func (d *demo) flaky(t turn) Reply {
	const remembered = 1024
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := sha256.Sum256(t.req.Body)
	if d.failed[sum] {
		return Say("That worked on the **second** try: the first got a 429, and Bobbin waited as long as it was asked to and tried again.")
	}
	if len(d.failed) >= remembered {
		clear(d.failed)
	}
	d.failed[sum] = true
	return Reply{Status: http.StatusTooManyRequests, RetryAfter: time.Second}
}

func (d *demo) tools(t turn) Reply {
	if len(t.req.Tools) == 0 {
		return Say("I was given **no tools** for this answer.")
	}
	var b strings.Builder
	b.WriteString("I was given these tools. Write `call NAME {…}` to use one with your own arguments.\n\n")
	for _, tool := range t.req.Tools {
		fmt.Fprintf(&b, "- **%s**: %s\n", tool.Name, cut(firstLine(tool.Description), 160))
	}
	return Say(b.String())
}

var number = regexp.MustCompile(`\d+`)

func (d *demo) count(t turn) Reply {
	const most = 500
	n, err := strconv.Atoi(number.FindString(t.ask))
	if err != nil || n > most {
		n = most
	}
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d ", i+1)
	}
	return Reply{Text: b.String() + "– done.", TokenDelay: slowPace * 3}
}

func (d *demo) recall(t turn) Reply {
	if t.before != "" {
		return Say("Of the beginning I have a summary:\n\n" + t.before + "\n\nAfter that you said:\n\n" + bullets(t.earlier))
	}
	if len(t.earlier) == 0 {
		return Say("This is the first thing that you have said here, as far as I can see.")
	}
	return Say("Before this you said:\n\n" + bullets(t.earlier))
}

var callAsk = regexp.MustCompile(`(?is)call\s+([^\s{]+)\s*(\{.*\})?`)

// call calls the tool that the person names.
func (d *demo) call(t turn) Reply {
	parts := callAsk.FindStringSubmatch(t.ask)
	name, arguments := parts[1], or(parts[2], "{}")
	switch {
	case t.rounds > 0:
		return Say(t.results("The tool") + t.takenIn())
	case !t.req.Offers(name):
		return Say("There is no tool named `" + cut(name, 64) + "` here. Write `tools` to see those that there are.")
	case !json.Valid([]byte(arguments)):
		return Say("These arguments are not valid JSON: `" + cut(arguments, 200) + "`")
	}
	return Reply{Text: "Calling `" + name + "`.", Calls: []Call{{Name: name, Arguments: arguments}}}
}

var address = regexp.MustCompile(`https?://[^\s<>"')\]]+`)

func (d *demo) fetch(t turn) Reply {
	urls := address.FindAllString(t.ask, 4)
	switch {
	case t.rounds > 0:
		return Say(t.results("The page") + t.takenIn())
	case !t.req.Offers("fetch_url"):
		return Say("I would read " + strings.Join(urls, " and ") + ", but the tool `fetch_url` was not given to me.")
	}
	return Reply{Text: "Reading " + strings.Join(urls, " and ") + ".", Calls: fetchCalls(urls)}
}

func fetchCalls(urls []string) []Call {
	var calls []Call
	for _, u := range urls {
		calls = append(calls, Call{Name: "fetch_url", Arguments: arguments(object{"url": u})})
	}
	return calls
}

func (d *demo) echo(t turn) Reply {
	if t.ask == "" {
		return Say("I am here. Write `help` to see what I can do.")
	}
	text := "You wrote:\n\n" + quote(cut(t.ask, 600)) + "\n\n"
	if n := len(t.earlier); n > 0 {
		text += fmt.Sprintf("(I also remember %s before it.) ", plural(n, "message"))
	}
	return Say(text + "I am only the **demo model**, so that is all I make of it. Write `help` to see what I can do, or `research " +
		"the wool trade` and then, while I work, *only domestic companies*: I take it in at my next step." + t.takenIn())
}

func arguments(o object) string {
	b, _ := json.Marshal(o) // strings and numbers always encode
	return string(b)
}
