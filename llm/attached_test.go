package llm

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"bobbin/llm/scripted"
	"bobbin/thread"
)

const pixel = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"

func attached(name, mediaType string) thread.Attached {
	return thread.Attached{File: thread.File{ID: "fil_1", Name: name, Type: mediaType, Size: 7}}
}

func TestFilesWithoutAPictureAreOneText(t *testing.T) {
	t.Parallel()
	text, broken := attached(`a "b".txt`, "text/plain"), attached("c.pdf", "application/pdf")
	text.Text, broken.Note = "wool\n", "This PDF is damaged."
	e := thread.Entry{Kind: thread.EntryUser, Text: "Look:", Files: []thread.Attached{text, broken, attached("d.png", "image/png")}}
	messages, images := shape(thread.Prompt{Entries: []thread.Entry{e}}, toolNames{}, false)
	require.Zero(t, images)
	require.Equal(t, []openai.ChatCompletionMessage{{Role: "user", Content: "Look:"}, {Role: "user", Content: `[Bobbin] Files that came with the message above:

<file id="fil_1" name="a \"b\".txt" type="text/plain" bytes="7">
wool
</file>

<file id="fil_1" name="c.pdf" type="application/pdf" bytes="7">
This PDF is damaged.
</file>

<file id="fil_1" name="d.png" type="image/png" bytes="7"/>`}}, messages)
}

func TestAPictureIsAPartBetweenTexts(t *testing.T) {
	t.Parallel()
	picture, text := attached("a.png", "image/png"), attached("b.txt", "text/plain")
	picture.Image, text.Text = []byte(pixel), "wool"
	e := thread.Entry{Kind: thread.EntryUser, Files: []thread.Attached{picture, text}}
	messages, images := shape(thread.Prompt{Entries: []thread.Entry{e}}, toolNames{}, false)
	require.Equal(t, 1, images)
	parts := messages[1].MultiContent
	require.Len(t, parts, 3)
	require.Contains(t, parts[0].Text, `name="a.png"`)
	require.Equal(t, "data:image/png;base64,"+base64.StdEncoding.EncodeToString([]byte(pixel)), parts[1].ImageURL.URL)
	require.Contains(t, parts[2].Text, "wool")
	raw, err := json.Marshal(openai.ChatCompletionRequest{Model: "m", Messages: messages})
	require.NoError(t, err)
	require.Nil(t, scripted.Check(raw))

	messages, images = shape(thread.Prompt{Entries: []thread.Entry{e}}, toolNames{}, true)
	require.Zero(t, images)
	require.Contains(t, messages[1].Content, refusedImage)
}

func TestAPictureThatIsRefusedIsOnlyNamed(t *testing.T) {
	t.Parallel()
	provider := scripted.New(scripted.Options{})
	defer provider.Close()
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		provider.ServeHTTP(w, r)
	}))
	defer srv.Close()
	c, err := New(Config{BaseURL: srv.URL + "/v1", Model: "m"})
	require.NoError(t, err)
	bad, good := attached("a.png", "image/png"), attached("b.png", "image/png")
	bad.Image, good.Image = []byte("no picture"), []byte(pixel)
	ask := func(f thread.Attached) {
		_, err := c.Call(t.Context(), thread.Prompt{Entries: []thread.Entry{{Kind: thread.EntryUser, Text: "Look", Files: []thread.Attached{f}}}}, nil)
		require.NoError(t, err)
	}
	ask(bad)
	require.EqualValues(t, 2, calls.Load())
	requests := provider.Requests()
	require.Empty(t, requests[0].Messages[1].Images)
	require.True(t, strings.Contains(requests[0].Messages[1].Text, "provider refused it"))
	ask(good)
	require.EqualValues(t, 3, calls.Load(), "it is not remembered against other pictures")
	require.Len(t, provider.Requests()[1].Messages[1].Images, 1)
}
