package scripted

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The bounds of one piece of demo work.
const (
	defaultWork = 20  // seconds
	longestWork = 600 // seconds
	fewestSteps = 3
	mostSteps   = 10
)

// A job is the work that an ask amounts to.
type job struct {
	topic   string
	steps   int
	seconds float64 // for each step
}

var (
	duration = regexp.MustCompile(`(?i)\b(?:for )?(?:about )?(\d+)\s*(s|secs?|seconds?|m|mins?|minutes?)\b`)
	topicOf  = regexp.MustCompile(`(?is)\b(?:research|investigate|work on)\b(?:\s+(?:about|into|on))?\s*(.*)`)
	enough   = regexp.MustCompile(`(?im)^\W*((that'?s|that is|thats) )?enough\b|\bwrap (it |this )?up\b|\bfinish (now|up|early)\b|\bhurry up\b`)
)

func jobOf(ask string) job {
	seconds := defaultWork
	if m := duration.FindStringSubmatch(ask); m != nil {
		seconds, _ = strconv.Atoi(m[1]) // too large: the largest, which is bounded below
		if strings.HasPrefix(strings.ToLower(m[2]), "m") {
			seconds = min(seconds, longestWork) * 60
		}
	}
	seconds = min(max(seconds, fewestSteps), longestWork)
	steps := min(max(seconds/5, fewestSteps), mostSteps)
	topic := "the task"
	if m := topicOf.FindStringSubmatch(duration.ReplaceAllString(ask, "")); m != nil {
		topic = or(cut(strings.Trim(firstLine(m[1]), " .,:;!?"), 80), topic)
	}
	return job{topic: topic, steps: steps, seconds: float64(seconds) / float64(steps)}
}

// work goes through the job's steps, one tool round each, and takes in what is written meanwhile.
func (d *demo) work(t turn) Reply {
	j := jobOf(t.ask)
	hurried := enough.MatchString(strings.Join(t.steering, "\n"))
	switch {
	case t.rounds >= j.steps || hurried || len(t.req.Tools) == 0:
		return Say(j.report(t))
	case !t.req.Offers(DemoTool):
		return Say("I would work on " + j.topic + " now, step by step, but the slow tool `" + DemoTool + "` was not given to me. Write `tools` to see what was." + t.takenIn())
	}
	return j.step(t)
}

func (j job) step(t turn) Reply {
	doing, _ := j.stage(t.rounds)
	text := fmt.Sprintf("Step %d of %d: %s%s.", t.rounds+1, j.steps, lowerFirst(doing), t.limits())
	if news := t.lines(t.news); len(news) > 0 {
		text = "Taking in: " + strings.Join(news, "; ") + "\n\n" + text
	}
	calls := []Call{{Name: DemoTool, Arguments: arguments(object{"task": doing + t.limits(), "seconds": j.seconds})}}
	if t.req.Offers("fetch_url") {
		calls = append(calls, fetchCalls(address.FindAllString(strings.Join(t.news, "\n"), 4))...)
	}
	return Reply{
		Text:      text,
		Reasoning: fmt.Sprintf("%s of %s done. Next: %s. ", plural(t.rounds, "step"), strconv.Itoa(j.steps), lowerFirst(doing)),
		Calls:     calls,
	}
}

// stage returns what step i does, and finds.
func (j job) stage(i int) (doing, found string) {
	all := strings.Split(strings.TrimSpace(demoSteps), "\n")
	doing, found, _ = strings.Cut(all[i%len(all)], " | ")
	return strings.ReplaceAll(doing, "{topic}", j.topic), strings.ReplaceAll(found, "{topic}", j.topic)
}

func (j job) report(t turn) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## What I found about %s%s\n\n", j.topic, t.limits())
	if t.rounds == 0 {
		b.WriteString("There was no time to look, so there is nothing to report yet.\n")
	}
	for i := range min(t.rounds, j.steps) {
		_, found := j.stage(i)
		fmt.Fprintf(&b, "%d. %s.\n", i+1, upperFirst(found))
	}
	b.WriteString(t.takenIn())
	if t.rounds < j.steps {
		fmt.Fprintf(&b, "\n\nThis is from **%d of %d** steps: I was asked to finish early.", t.rounds, j.steps)
	}
	b.WriteString("\n\n*(All of this is made up: I am the demo model. The rounds, the waiting and the steering were real.)*")
	return b.String()
}
