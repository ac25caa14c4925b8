package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"bobbin/api"
	"bobbin/files"
	"bobbin/store/storetest"
	"bobbin/thread"
)

const png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"

// A part is one part of a form.
type part struct{ disposition, content string }

func named(name, content string) part {
	return part{fmt.Sprintf(`form-data; name="file"; filename="%s"`, name), content}
}

func multi(t testing.TB, parts ...part) (body, contentType string) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, p := range parts {
		h := textproto.MIMEHeader{"Content-Disposition": {p.disposition}, "Content-Type": {"application/octet-stream"}}
		pw, err := w.CreatePart(h)
		require.NoError(t, err)
		_, err = io.WriteString(pw, p.content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return buf.String(), w.FormDataContentType()
}

func (b *bundle) upload(name, content string, header ...string) map[string]any {
	b.Helper()
	body, media := multi(b, named(name, content))
	return b.ok("POST", "/v1/files", body, append([]string{"Content-Type", media}, header...)...)
}

func (b *bundle) refusedUpload(status int, code string, parts ...part) answer {
	b.Helper()
	body, media := multi(b, parts...)
	return b.refused(status, code, "POST", "/v1/files", body, "Content-Type", media)
}

// nothing says that no file came and none is left.
func (b *bundle) nothing() {
	b.Helper()
	b.count(2) // those of the bundle
	entries, err := os.ReadDir(b.dir)
	require.NoError(b, err)
	require.Empty(b, entries)
}

func (b *bundle) count(want int) {
	b.Helper()
	require.Len(b, storetest.Files(b, b.dsn), want)
}

func TestAFileIsKeptListedReadAndDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.upload("wool.md", "# Wool\n\nSheep.\n")
	sum := sha256.Sum256([]byte("# Wool\n\nSheep.\n"))
	require.Equal(t, "wool.md", f["name"])
	require.Equal(t, "text/markdown", f["type"])
	require.EqualValues(t, 15, f["size"])
	require.Equal(t, hex.EncodeToString(sum[:]), f["sha256"])
	id := text(f, "id")
	require.Equal(t, f, b.ok("GET", "/v1/files/"+id, ""))
	require.Contains(t, b.ok("GET", "/v1/files", "")["data"], f)
	require.Equal(t, true, b.ok("GET", "/v1/files?limit=2", "")["has_more"])

	a := b.do("GET", "/v1/files/"+id+"/content", "")
	require.Equal(t, "# Wool\n\nSheep.\n", a.raw)
	require.Equal(t, "text/markdown", a.header.Get("Content-Type"))
	require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
	require.Contains(t, a.header.Get("Content-Security-Policy"), "sandbox")
	require.Equal(t, `attachment; filename="wool.md"`, a.header.Get("Content-Disposition"))
	require.Equal(t, 304, b.do("GET", "/v1/files/"+id+"/content", "", "If-None-Match", a.header.Get("ETag")).status)
	a = b.do("GET", "/v1/files/"+id+"/content", "", "Range", "bytes=2-5")
	require.Equal(t, 206, a.status)
	require.Equal(t, "Wool", a.raw)
	for _, r := range []string{"bytes=99-", "bytes=5-2", "lines=1-2", "bytes=0-1,3-4", "bytes=-0", "bytes=x-"} {
		a = b.do("GET", "/v1/files/"+id+"/content", "", "Range", r)
		require.Equal(t, 200, a.status, r)
		require.Len(t, a.raw, 15)
	}

	require.Equal(t, map[string]any{"id": id, "deleted": true}, b.ok("DELETE", "/v1/files/"+id, ""))
	for _, method := range []string{"GET", "DELETE"} {
		b.refused(404, "not_found", method, "/v1/files/"+id, "")
	}
	b.refused(404, "not_found", "GET", "/v1/files/"+id+"/content", "")
	b.nothing()
}

func TestAnotherOwnersFileIsNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := text(b.upload("mine.txt", "mine"), "id")
	bert := []string{"Authorization", "Bearer " + bertsKey}
	for _, r := range [][2]string{{"GET", ""}, {"GET", "/content"}, {"DELETE", ""}} {
		b.refused(404, "not_found", r[0], "/v1/files/"+id+r[1], "", bert...)
	}
	require.Empty(t, b.ok("GET", "/v1/files", "", bert...)["data"])
	a := b.refused(400, "invalid_field", "POST", "/v1/threads/home/messages", `{"text": "look", "attachments": ["`+id+`"]}`, bert...)
	require.Equal(t, "attachments[0]", a.body["field"])
	require.Empty(t, b.ok("GET", "/v1/threads/home/messages", "", bert...)["data"])
}

func TestAnAttachmentIsAFileOfTheOwnersOrNothingChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := text(b.upload("a.txt", "a"), "id")
	path := "/v1/threads/" + b.open() + "/messages"
	a := b.refused(400, "invalid_field", "POST", path, `{"text": "look", "attachments": ["`+id+`", "`+id+`", "fil_none"]}`, "Idempotency-Key", "k")
	require.Equal(t, "attachments[2]", a.body["field"])
	require.Empty(t, b.ok("GET", path, "")["data"])
	b.ok("POST", path, `{"text": "look", "attachments": ["`+id+`"]}`, "Idempotency-Key", "k")
	b.refused(409, "conflict", "DELETE", "/v1/files/"+id, "")
	b.ok("POST", path, `{"text": "look", "attachments": ["`+id+`"]}`, "Idempotency-Key", "k")
}

func TestAFileOfAWithdrawnMessageCanBeAttachedAgainOrDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, th := text(b.upload("a.txt", "a"), "id"), b.open()
	b.say(th, "work")
	b.ok("POST", "/v1/threads/"+th+"/messages", `{"attachments": ["`+id+`"]}`)
	got := b.ok("DELETE", "/v1/threads/"+th+"/steering", "")
	require.Equal(t, []any{id}, got["attachments"])
	again := b.ok("POST", "/v1/threads/"+th+"/messages", `{"attachments": ["`+id+`"]}`)
	b.refused(409, "conflict", "DELETE", "/v1/files/"+id, "")
	b.ok("DELETE", "/v1/messages/"+text(again, "message", "id"), "")
	b.ok("DELETE", "/v1/files/"+id, "")
}

func TestWhatCannotBeTakenIsNamedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.Limits.File = 100 })
	for name, c := range map[string]struct {
		status int
		code   string
		says   string
		parts  []part
	}{
		"no part":            {400, "invalid_field", "is missing", nil},
		"another part":       {400, "unknown_field", "what is: file", []part{{`form-data; name="photo"; filename="a.txt"`, "a"}}},
		"a part behind it":   {400, "unknown_field", "`title`", []part{named("a.txt", "a"), {`form-data; name="title"`, "x"}}},
		"two files":          {400, "invalid_field", "twice", []part{named("a.txt", "a"), named("b.txt", "b")}},
		"an empty file":      {400, "invalid_field", "is empty", []part{named("a.txt", "")}},
		"no name":            {400, "invalid_field", "needs a name", []part{{`form-data; name="file"`, "a"}}},
		"a path":             {400, "invalid_field", "path", []part{named("../../etc/passwd", "a")}},
		"a path of Windows":  {400, "invalid_field", "path", []part{named(`C:\\temp\\a.txt`, "a")}},
		"dots":               {400, "invalid_field", "path", []part{named("..", "a")}},
		"NUL":                {400, "invalid_field", "", []part{named("a\x00.txt", "a")}},
		"control characters": {400, "invalid_field", "control", []part{{`form-data; name="file"; filename*=UTF-8''a%07.txt`, "a"}}},
		"turned round":       {400, "invalid_field", "control", []part{named("a\u202etxt.exe", "a")}},
		"broken UTF-8":       {400, "invalid_field", "", []part{named("a\xff.txt", "a")}},
		"a long name":        {400, "invalid_field", "255", []part{named(strings.Repeat("é", 128), "a")}},
		"a program":          {415, "unsupported_media_type", "image/png", []part{named("a.png", "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00")}},
		"an archive":         {415, "unsupported_media_type", "image/png", []part{named("a.txt", "PK\x03\x04\x14\x00\x00\x00")}},
		"one byte too many":  {413, "body_too_large", "100 bytes", []part{named("a.txt", strings.Repeat("a", 101))}},
		"far too many":       {413, "body_too_large", "100 bytes", []part{named("a.txt", strings.Repeat("a", 100_000))}},
	} {
		t.Run(name, func(t *testing.T) {
			a := b.refusedUpload(c.status, c.code, c.parts...)
			require.Contains(t, a.body["detail"], c.says)
			b.nothing()
		})
	}
	for _, media := range []string{"", "application/json", "text/plain", "multipart/form-data", "multipart/mixed; boundary=x"} {
		b.refused(415, "unsupported_media_type", "POST", "/v1/files", "x", "Content-Type", media)
	}
	for _, body := range []string{"", "--x", "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nhalf"} {
		a := b.do("POST", "/v1/files", body, "Content-Type", "multipart/form-data; boundary=x")
		require.Equal(t, 400, a.status, "%q: %s", body, a.raw)
	}
	b.nothing()
	b.upload("exact.txt", strings.Repeat("a", 100))
}

func TestTheTypeIsFoundFromTheContent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, c := range map[string][2]string{
		"a.txt": {png, "image/png"}, "b.png": {"plain words", "text/plain"}, "c.json": {`{"a": 1}`, "application/json"}, "d.csv": {"a,b\n1,2\n", "text/csv"},
		"e.pdf": {"%PDF-1.4\n", "application/pdf"}, "f.html": {"<!doctype html><script>1</script>", "text/html"}, "g.svg": {`<svg xmlns="http://www.w3.org/2000/svg"/>`, "text/plain"},
		"h.go": {"package main\n", "text/plain"}, "i.md": {"GIF89a\x01\x00\x01\x00", "image/gif"},
	} {
		require.Equal(t, c[1], b.upload(name, c[0])["type"], name)
	}
}

func TestOddNamesComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{"Übersicht 2026 (v2).txt", "a;b=c, d.txt", "🧶.txt", "100%.txt", "it's.txt", " spaces .txt", "no-extension", ".hidden"} {
		id := text(b.upload(name, "a"), "id")
		a := b.do("GET", "/v1/files/"+id+"/content", "")
		_, params, err := mime.ParseMediaType(a.header.Get("Content-Disposition"))
		require.NoError(t, err, name)
		require.Equal(t, name, params["filename"])
		require.Equal(t, name, b.ok("GET", "/v1/files/"+id, "")["name"])
	}
}

func TestAnUploadIsRepeatedUnderItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.upload("a.txt", "one", "Idempotency-Key", "k")
	body, media := multi(t, named("a.txt", "one"))
	a := b.do("POST", "/v1/files", body, "Content-Type", media, "Idempotency-Key", "k")
	require.Equal(t, "true", a.header.Get("Idempotency-Replayed"))
	require.Equal(t, first, a.body)
	for _, other := range []part{named("a.txt", "two"), named("b.txt", "one")} {
		body, media = multi(t, other)
		b.refused(422, "idempotency_key_reused", "POST", "/v1/files", body, "Content-Type", media, "Idempotency-Key", "k")
	}
	b.refused(422, "limit_exceeded", "POST", "/v1/files", body, "Content-Type", media, "Idempotency-Key", strings.Repeat("k", 201))
	b.count(3)
	entries, err := os.ReadDir(b.dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestAClientThatHangsUpLeavesNothing(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	b := setup(t, func(c *api.Config) { c.Files = telling{c.Files, gone} })
	u, err := url.Parse(b.url)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n"+
		"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\n%s", annasKey, strings.Repeat("half of it ", 2000))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Fatal("the upload did not end")
	}
	require.Eventually(t, func() bool { return len(storetest.Files(b, b.dsn)) == 2 }, 20*time.Second, 5*time.Millisecond)
	b.nothing()
}

// telling closes gone when what was put is deleted.
type telling struct {
	api.Blobs
	gone chan struct{}
}

func (f telling) Delete(ctx context.Context, id string) error {
	defer close(f.gone)
	return f.Blobs.Delete(ctx, id)
}

// broken is a file store that is away.
type broken struct{ api.Blobs }

func (broken) Put(_ context.Context, _ string, content io.Reader) error {
	_, _ = io.Copy(io.Discard, content)
	return fmt.Errorf("%w: %w", thread.ErrUnavailable, errors.New("secret address"))
}

func (broken) Open(context.Context, string, int64) (io.ReadSeekCloser, error) {
	return nil, thread.ErrUnavailable
}

func (broken) Delete(context.Context, string) error { return thread.ErrUnavailable }

func TestAFileStoreThatIsAwayIsNamedAndWhatIsLeftIsSwept(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config) { c.Files = broken{c.Files} })
	a := b.refusedUpload(503, "unavailable", named("a.txt", "a"))
	require.NotContains(t, a.raw, "secret")
	b.refused(503, "unavailable", "GET", "/v1/files/file_1/content", "")
	require.Len(t, b.ok("GET", "/v1/files", "")["data"], 2, "what is not whole is not shown")
	b.count(3)

	n, err := api.SweepFiles(t.Context(), b.db, b.blobs, time.Hour, 10)
	require.NoError(t, err)
	require.Zero(t, n, "it may still be coming")
	n, err = api.SweepFiles(t.Context(), b.db, b.blobs, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	b.nothing()
}

// Whatever is killed between the row, the content and the row again: the sweep finds it, and a late finish finds nothing.
func TestAnUploadThatBrokeOffAnywhereIsSwept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begin := func() string {
		id, err := b.db.BeginFile(t.Context(), "anna", "a.txt", "text/plain")
		require.NoError(t, err)
		return id
	}
	begin() // before its content
	stored := begin()
	require.NoError(t, b.blobs.Put(t.Context(), stored, strings.NewReader("a")))
	kept := begin()
	require.NoError(t, b.blobs.Put(t.Context(), kept, strings.NewReader("a")))
	_, _, err := b.db.FinishFile(t.Context(), "anna", kept, 1, strings.Repeat("0", 64), "")
	require.NoError(t, err)
	deleted := text(b.upload("b.txt", "b"), "id")
	require.NoError(t, b.db.DeleteFile(t.Context(), "anna", deleted)) // before its content
	_, err = api.SweepFiles(t.Context(), b.db, b.blobs, 0, 10)
	require.NoError(t, err)
	b.count(3)
	_, _, err = b.db.FinishFile(t.Context(), "anna", stored, 1, strings.Repeat("0", 64), "")
	require.ErrorIs(t, err, thread.ErrNotFound)
	require.Equal(t, "a", b.do("GET", "/v1/files/"+kept+"/content", "").raw)
}

func TestAnUploadWantsAKeyAndPostgres(t *testing.T) {
	t.Parallel()
	b := setup(t)
	body, media := multi(t, named("a.txt", "a"))
	b.refused(401, "unauthorized", "POST", "/v1/files", body, "Content-Type", media, "Authorization", "Bearer nobody")
	b.upload("a.txt", "a")
	b.db.Close()
	b.refusedUpload(503, "unavailable", named("b.txt", "b"))
	entries, err := os.ReadDir(b.dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestAFileWithoutContentIsTheServersFault(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.refused(500, "internal", "GET", "/v1/files/file_1/content", "")
}

func TestADeletionAndAnAttachmentAtTheSameMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 20 {
		id, th := text(b.upload("a.txt", "a"), "id"), b.open()
		done := make(chan answer, 1)
		go func() { done <- b.do("DELETE", "/v1/files/"+id, "") }()
		sent := b.do("POST", "/v1/threads/"+th+"/messages", `{"attachments": ["`+id+`"]}`)
		deleted := <-done
		require.NotEqual(t, sent.status < 300, deleted.status < 300, "one of them wins: %s %s", sent.raw, deleted.raw)
	}
}

func FuzzUpload(f *testing.F) {
	for _, s := range []string{"", "--x--", "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\na\r\n--x--", "--x\r\n\r\na\r\n--x--"} {
		f.Add(s, "a.txt")
	}
	f.Fuzz(func(t *testing.T, body, name string) {
		if files.UnfitName(name) == "" {
			for _, r := range name {
				require.False(t, r < ' ' || r == '/' || r == '\\' || r == 0x7f)
			}
		}
		mr := multipart.NewReader(strings.NewReader(body), "x")
		for {
			p, err := mr.NextPart()
			if err != nil {
				return
			}
			_, _, _, _ = files.Sniff(p, name, files.DefaultTypes)
		}
	})
}
