package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"bobbin/e2e/house"
	"bobbin/llm/scripted"
	"bobbin/thread"
)

// upload uploads a file under a key and returns it.
func upload(h *house.House, key, name, content string) thread.File {
	h.T.Helper()
	f, status := tryUpload(h, key, name, content)
	require.Equal(h.T, http.StatusCreated, status)
	return f
}

func tryUpload(h *house.House, key, name, content string) (f thread.File, status int) {
	h.T.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("file", name)
	require.NoError(h.T, err)
	_, err = io.WriteString(part, content)
	require.NoError(h.T, err)
	require.NoError(h.T, w.Close())
	ctx, cancel := context.WithTimeout(context.Background(), house.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL()+"/v1/files", &form)
	require.NoError(h.T, err)
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", w.FormDataContentType())
	resp, err := http.DefaultClient.Do(req)
	require.NoError(h.T, err)
	defer resp.Body.Close()
	require.NoError(h.T, json.NewDecoder(resp.Body).Decode(&f))
	return f, resp.StatusCode
}

const picture = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"

// pdf is a page with one line.
func pdf(line string) string {
	var out strings.Builder
	var offsets []int
	out.WriteString("%PDF-1.4\n")
	stream := "BT /F1 18 Tf 72 700 Td (" + line + ") Tj ET"
	for _, body := range []string{
		"<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [4 0 R] /Count 1 >>", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
		"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>",
		fmt.Sprintf("<< /Length %d >>\nstream\n%s\nendstream", len(stream), stream),
	} {
		offsets = append(offsets, out.Len())
		fmt.Fprintf(&out, "%d 0 obj\n%s\nendobj\n", len(offsets), body)
	}
	xref := out.Len()
	fmt.Fprintf(&out, "xref\n0 %d\n0000000000 65535 f \n", len(offsets)+1)
	for _, at := range offsets {
		fmt.Fprintf(&out, "%010d 00000 n \n", at)
	}
	fmt.Fprintf(&out, "trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(offsets)+1, xref)
	return out.String()
}

// shownFiles are the messages of a request that show files.
func shownFiles(r scripted.Request) (list []scripted.Message) {
	for _, m := range r.Messages {
		if strings.HasPrefix(m.Text, "[Bobbin] Files") {
			list = append(list, m)
		}
	}
	return list
}

func TestAttachmentsReachTheModelWhenTheirTurnStarts(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t, "BOBBIN_MODEL_MAX_IMAGES=1", "BOBBIN_FILE_FETCH_TIMEOUT=2s")
	notes := upload(h, house.APIKey, "notes.md", "# Wool\n\nFrom Tuscany.")
	report := upload(h, house.APIKey, "report.pdf", pdf("Sheep in the hills"))
	photo := upload(h, house.APIKey, "photo.png", picture)
	other := upload(h, house.APIKey, "other.png", picture)
	require.Equal(t, []string{"text/markdown", "application/pdf", "image/png"}, []string{notes.Type, report.Type, photo.Type})

	g := h.Tools.Gate("reading")
	c := h.Chat(scripted.Rounds(house.Ask("look", "reading"), scripted.Say("One."), scripted.Say("Two."), scripted.Say("Three.")))
	first := c.Start("Read these.", house.Files(notes.ID, report.ID, photo.ID))
	h.Arrives(g)
	shown := shownFiles(h.Request(c.Marker, 1))
	require.Len(t, shown, 1)
	for _, text := range []string{"From Tuscany.", "Sheep in the hills", `name="photo.png"`} {
		require.Contains(t, shown[0].Text, text)
	}
	url := "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(picture))
	require.Equal(t, []string{url}, shown[0].Images)

	second := c.Send("And this one.", house.Files(other.ID))
	require.Equal(t, thread.DisposedSteering, second.Disposition)
	g.Release()
	c.Answered(first.TurnID)
	started := c.Await("the follow-up", func(e house.Event) bool {
		return e.Name == thread.EventTurnStarted && e.Turn.FollowUpOf == first.TurnID
	})
	c.Answered(started.TurnID)
	require.Len(t, shownFiles(h.Request(c.Marker, 2)), 1, "a running turn's files are those that it started with")
	shown = shownFiles(h.Request(c.Marker, 3))
	require.Len(t, shown, 2)
	require.Contains(t, shown[0].Text, "From Tuscany.", "earlier texts are still there")
	require.Empty(t, shown[0].Images)
	require.Contains(t, shown[0].Text, "newer ones are", "of pictures only the newest are")
	require.Equal(t, []string{url}, shown[1].Images)
	require.Equal(t, []string{"And this one."}, h.Request(c.Marker, 3).News())

	// What was read is kept; a picture that is gone is a note, and the turn goes on.
	for _, f := range []thread.File{notes, report, other} {
		require.NoError(t, os.Remove(filepath.Join(h.Dir, ".bobbin", "files", f.ID)))
	}
	c.Answered(c.Send("Again.").TurnID)
	shown = shownFiles(h.Request(c.Marker, 4))
	require.Contains(t, shown[0].Text, "Sheep in the hills")
	require.Contains(t, shown[1].Text, "content of this file is gone")
	c.CheckOrder()
}

func TestFilesBelongToTheirOwner(t *testing.T) {
	t.Parallel()
	h := house.Furnish(t)
	require.NoError(t, h.DB.EnsureKey(t.Context(), "bert", "e2e", "bob_bert"))
	berts := upload(h, "bob_bert", "secret.txt", "secret")
	c := h.Chat(scripted.Rounds(scripted.Say("Nothing.")))
	_, err := c.TrySend("Read it.", house.Files(berts.ID))
	var p *house.Problem
	require.ErrorAs(t, err, &p)
	require.Equal(t, http.StatusBadRequest, p.Status)
	require.Error(t, h.Call("GET", "/v1/files/"+berts.ID, nil, &struct{}{}))
	_, status := tryUpload(h, house.APIKey, "a.exe", "MZ\x90\x00\x03")
	require.Equal(t, http.StatusUnsupportedMediaType, status)
}
