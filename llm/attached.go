package llm

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/sashabaranov/go-openai"

	"bobbin/thread"
)

// refusedImage stands for the pictures of a request that a provider refused.
const refusedImage = "This picture is not shown: the model's provider refused it."

// filesNote begins the message that shows what came with the person's message above it.
const filesNote = NoteTag + "Files that came with the message above:"

// attached renders the files of a user entry, as a message of their own, so that what the person wrote stays as it was. Without
// a picture to show it is one text, as every provider takes it; with one it is parts:
// https://platform.openai.com/docs/api-reference/chat/create (messages, content)
func (s *shaper) attached(files []thread.Attached) {
	if len(files) == 0 {
		return
	}
	var parts []openai.ChatMessagePart
	texts := []string{filesNote}
	flush := func() {
		if len(texts) > 0 {
			parts = append(parts, openai.ChatMessagePart{Type: openai.ChatMessagePartTypeText, Text: strings.Join(texts, "\n\n")})
			texts = nil
		}
	}
	for _, f := range files {
		if texts = append(texts, s.file(f)); s.shows(f) {
			flush()
			parts = append(parts, openai.ChatMessagePart{
				Type: openai.ChatMessagePartTypeImageURL, ImageURL: &openai.ChatMessageImageURL{URL: dataURL(f)},
			})
			s.images++
		}
	}
	if parts == nil {
		s.say(openai.ChatMessageRoleUser, strings.Join(texts, "\n\n"))
		return
	}
	flush()
	s.messages = append(s.messages, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, MultiContent: parts})
}

func (s *shaper) shows(f thread.Attached) bool { return len(f.Image) > 0 && !s.blind }

// file is what the model reads of a file: its name, and its text or why there is none.
func (s *shaper) file(f thread.Attached) string {
	head := fmt.Sprintf("<file id=%q name=%q type=%q bytes=\"%d\"", f.ID, clean(f.Name), f.Type, f.Size)
	note := f.Note
	if len(f.Image) > 0 && s.blind {
		note = refusedImage
	}
	var body []string
	for _, part := range []string{note, strings.Trim(clean(f.Text), "\n")} {
		if strings.TrimSpace(part) != "" {
			body = append(body, part)
		}
	}
	if len(body) == 0 {
		return head + "/>"
	}
	return head + ">\n" + strings.Join(body, "\n") + "\n</file>"
}

func dataURL(f thread.Attached) string {
	return "data:" + f.Type + ";base64," + base64.StdEncoding.EncodeToString(f.Image)
}
