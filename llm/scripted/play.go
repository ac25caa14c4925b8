package scripted

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// Echo answers with what people wrote last.
func Echo(r Request) Reply {
	news := r.News()
	if len(news) == 0 {
		return Say("You have said nothing.")
	}
	return Say("You said: " + news[len(news)-1])
}

// Always answers everything with reply.
func Always(reply Reply) Play { return func(Request) Reply { return reply } }

// List answers the first request of each conversation (Request.Conversation) with the first reply, and so on. A request
// that is repeated takes the next one, so a list can hold an error and what follows it. After the last reply every request
// gets a 400 with the code script_exhausted.
func List(replies ...Reply) Play {
	var mu sync.Mutex
	next := map[string]int{}
	return func(r Request) Reply {
		mu.Lock()
		defer mu.Unlock()
		i := next[r.Conversation()]
		next[r.Conversation()]++
		return nth(replies, i)
	}
}

// Rounds answers by what the request shows: the reply at i if the assistant has spoken i times in it. A request that is
// repeated, by another process for instance, gets the same reply. Past the last it is as List is.
func Rounds(replies ...Reply) Play {
	return func(r Request) Reply { return nth(replies, len(r.Texts("assistant"))) }
}

func nth(replies []Reply, i int) Reply {
	if i < len(replies) {
		return replies[i]
	}
	return Reply{Status: http.StatusBadRequest, ErrorCode: "script_exhausted", ErrorMessage: "The script has no more replies."}
}

// Window plays play behind a context window of so many tokens, four bytes of the request a token: a longer request is
// refused in OpenAI's words, https://platform.openai.com/docs/guides/error-codes.
func Window(tokens int64, play Play) Play {
	return func(r Request) Reply {
		n := r.tokens()
		if n <= tokens {
			return play(r)
		}
		return Reply{
			Status: http.StatusBadRequest, ErrorCode: contextExceeded,
			ErrorMessage: fmt.Sprintf("This model's maximum context length is %d tokens. However, your messages resulted in %d tokens. "+
				"Please reduce the length of the messages.", tokens, n),
		}
	}
}

const contextExceeded = "context_length_exceeded"

func hasField(body []byte, field string) bool {
	var fields map[string]json.RawMessage
	return json.Unmarshal(body, &fields) == nil && fields[field] != nil
}
