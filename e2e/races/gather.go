package races

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// gather reads what there is to know of each place, through the API.
func (s *site) gather(visits []*visit) []record {
	s.T.Helper()
	asked := map[int][]request{}
	for _, r := range s.Model.Requests()[s.asked:] {
		at, _ := placeOf(r)
		asked[at] = append(asked[at], read(r))
	}
	effects := map[string][]effect{}
	for _, c := range s.Tools.All()[s.effects:] {
		if c.Tool == "charge" {
			f := strings.Split(c.Key, "-")
			effects[f[1]] = append(effects[f[1]], effect{Key: c.Key})
		}
	}
	var all []record
	for _, v := range visits {
		r := record{Place: v.N, Calls: v.calls, Requests: asked[v.N], Effects: effects[fmt.Sprint(v.N)]}
		r.Calls = slices.DeleteFunc(r.Calls, func(c *call) bool { return len(c.Tries) == 0 })
		for _, id := range v.everyThread() {
			r.Threads = append(r.Threads, v.story(id))
		}
		all = append(all, r)
	}
	return all
}

// read keeps of a request what is checked.
func read(r scripted.Request) request {
	q := request{N: r.N, Arrived: r.Arrived, Left: r.Gone, Finished: r.Finished}
	open := map[string]bool{}
	for _, m := range r.Messages {
		if m.Role == "tool" {
			if !open[m.CallID] {
				q.Orphans = append(q.Orphans, m.CallID)
			}
			delete(open, m.CallID)
			continue
		}
		for id := range open {
			q.Orphans = append(q.Orphans, id)
		}
		clear(open)
		for _, c := range m.Calls {
			open[c.ID] = true
		}
		q.say(m)
	}
	for id := range open {
		q.Orphans = append(q.Orphans, id)
	}
	return q
}

// say adds what people and the model said to each other.
func (q *request) say(m scripted.Message) {
	if m.Role != "user" && m.Role != "assistant" || len(m.Calls) > 0 || strings.HasPrefix(m.Text, scripted.NoteTag) {
		return
	}
	if marks := anyMark.FindAllString(m.Text, -1); len(marks) > 0 {
		q.Lines = append(q.Lines, line{m.Role, marks})
	}
}

// everyThread lists the threads that a place has had.
func (v *visit) everyThread() []string {
	var page struct{ Data []thread.Thread }
	if err := v.get("GET", "/v1/threads?limit=500", &page); err != nil {
		v.T.Errorf("place %d: %v", v.N, err)
	}
	var ids []string
	for _, t := range slices.Backward(page.Data) {
		if v.Home || !t.Home { // a home that nobody has written to was opened by a look
			ids = append(ids, t.ID)
		}
	}
	return ids
}

func (v *visit) story(id string) story {
	s := story{ID: id, Closed: id == v.closed}
	var err error
	if s.Events, err = v.events(id); err != nil {
		v.T.Errorf("the events of %s: %v", id, err)
	}
	for before := ""; ; {
		var page struct {
			Data    []thread.Message
			HasMore bool `json:"has_more"`
		}
		if err := v.get("GET", "/v1/threads/"+id+"/messages?limit=500&before="+before, &page); err != nil {
			v.T.Errorf("the messages of %s: %v", id, err)
		}
		s.Screen = append(page.Data, s.Screen...)
		if !page.HasMore {
			break
		}
		before = page.Data[0].ID
	}
	var turns struct{ Data []thread.Turn }
	if err := v.get("GET", "/v1/threads/"+id+"/turns?limit=500", &turns); err != nil {
		v.T.Errorf("the turns of %s: %v", id, err)
	}
	s.Turns = turns.Data
	return s
}

// events reads a thread's stream from its beginning to the last event that there is.
func (v *visit) events(id string) ([]event, error) {
	var th thread.Thread
	if err := v.get("GET", "/v1/threads/"+id, &th); err != nil {
		return nil, err
	}
	ctx, done := context.WithTimeout(context.Background(), house.Patience)
	defer done()
	req, err := http.NewRequestWithContext(ctx, "GET", v.urls[0]+"/v1/threads/"+id+"/events?after=0", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+v.key)
	resp, err := v.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var all []event
	var e event
	for r := bufio.NewReader(resp.Body); len(all) == 0 && th.LastEvent > 0 || len(all) > 0 && all[len(all)-1].Seq < th.LastEvent; {
		text, err := r.ReadString('\n')
		if err != nil {
			return all, err
		}
		switch field, value, _ := strings.Cut(strings.TrimSpace(text), ": "); field {
		case "event":
			e = event{Name: thread.EventName(value)}
		case "data":
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				return all, err
			}
			all = append(all, e)
		}
	}
	return all, nil
}
