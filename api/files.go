package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"bobbin/files"
	"bobbin/store"
	"bobbin/thread"
)

// Blobs keeps the content of files. After an error of Put something may be left, which Delete removes.
type Blobs interface {
	Put(ctx context.Context, id string, content io.Reader) error
	Open(ctx context.Context, id string, size int64) (io.ReadSeekCloser, error)
	Delete(ctx context.Context, id string) error
}

// transfer makes a handler of a function that moves a file's content. It has more time than others, and ends when its
// client goes.
func (a *api) transfer(h func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), a.cfg.TransferTimeout)
		defer cancel()
		c.Request = c.Request.WithContext(ctx)
		rc, until := http.NewResponseController(c.Writer), time.Now().Add(a.cfg.TransferTimeout)
		_, _ = rc.SetReadDeadline(until), rc.SetWriteDeadline(until.Add(readyTimeout)) // a recorder in a test has none
		defer func() { _, _ = rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{}) }()
		if err := h(c); err != nil {
			a.fail(c, err)
		}
	}
}

// formOverhead is what a form may hold beside the file: boundaries and headers.
const formOverhead = 64 << 10

// upload takes one file. Its row is there before its content and is dropped if anything goes wrong.
func (a *api) upload(c *gin.Context) error {
	key := c.GetHeader("Idempotency-Key")
	var f form
	if why := unfit(key, false); why != "" {
		f.wrong("Idempotency-Key", CodeInvalidField, 0, why)
	}
	f.measure("Idempotency-Key", utf8.RuneCountInString(key), a.cfg.Limits.Key, "characters")
	if err := mistaken(f.mistakes); err != nil {
		return err
	}
	if c.Request.ContentLength > a.cfg.Limits.File+formOverhead {
		return a.tooLarge()
	}
	c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, a.cfg.Limits.File+formOverhead)
	mr, err := c.Request.MultipartReader()
	if err != nil || !strings.HasPrefix(strings.ToLower(strings.TrimSpace(c.GetHeader("Content-Type"))), "multipart/form-data") {
		return &Problem{Status: http.StatusUnsupportedMediaType, Code: CodeMediaType, Detail: "Send the file as multipart/form-data, in a part named `file`."}
	}
	part, err := mr.NextPart()
	if err != nil {
		return a.unreadable(err)
	}
	name, err := fileName(part)
	if err != nil {
		return err
	}
	mediaType, content, empty, err := files.Sniff(part, name, a.cfg.FileTypes)
	switch {
	case err != nil:
		return a.unreadable(err)
	case empty:
		return wrongFile(CodeInvalidField, "`file` is empty.")
	case mediaType == "":
		return &Problem{
			Status: http.StatusUnsupportedMediaType, Code: CodeMediaType, Field: "file",
			Detail: "`file` is of a type that is not taken here; what is: " + strings.Join(a.cfg.FileTypes, ", ") + ".",
		}
	}
	file, repeated, err := a.keep(c.Request.Context(), owner(c), key, thread.File{Name: name, Type: mediaType}, &incoming{
		content: content, hash: sha256.New(), limit: a.cfg.Limits.File, rest: mr,
	})
	if err != nil {
		return err
	}
	if repeated {
		c.Header("Idempotency-Replayed", "true")
	}
	c.Header("Location", "/v1/files/"+file.ID)
	a.say(c, http.StatusCreated, file)
	return nil
}

// keep stores a file that is coming in.
func (a *api) keep(ctx context.Context, ownerID, key string, f thread.File, in *incoming) (*thread.File, bool, error) {
	id, err := a.store.BeginFile(ctx, ownerID, f.Name, f.Type)
	if err != nil {
		return nil, false, err
	}
	if err = a.cfg.Files.Put(ctx, id, in); in.err != nil {
		err = a.unreadable(in.err)
	}
	if err == nil {
		var stored *thread.File
		var repeated bool
		// What was read whole is carried through.
		stored, repeated, err = a.store.FinishFile(context.WithoutCancel(ctx), ownerID, id, in.size, hex.EncodeToString(in.hash.Sum(nil)), key)
		if err == nil && !repeated {
			return stored, false, nil
		}
		if err == nil {
			a.drop(ctx, id)
			return stored, true, nil
		}
		switch {
		case errors.Is(err, thread.ErrUnavailable): // perhaps it was finished: what was not, the sweep removes
			return nil, false, err
		case errors.Is(err, thread.ErrNotFound): // it took so long that it was swept
			err = context.DeadlineExceeded
		}
	}
	a.drop(ctx, id)
	return nil, false, err
}

// drop removes what is left of a file. What cannot be removed now the sweep removes.
func (a *api) drop(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.Timeout)
	defer cancel()
	err := a.cfg.Files.Delete(ctx, id)
	if err == nil {
		err = a.store.ForgetFile(ctx, id)
	}
	if err != nil {
		a.cfg.Log.WarnContext(ctx, "file not removed, the sweep will", "file", id, "error", err)
	}
}

// incoming reads a part's content to its end, and sees to it that nothing else follows.
type incoming struct {
	content io.Reader
	hash    hash.Hash
	size    int64
	limit   int64
	rest    *multipart.Reader
	err     error // why it could not be read whole
}

var errTooLarge = errors.New("the file is too large")

func (in *incoming) Read(p []byte) (int, error) {
	n, err := in.content.Read(p)
	in.size += int64(n)
	in.hash.Write(p[:n])
	switch {
	case in.size > in.limit:
		n, err = 0, errTooLarge
	case err == io.EOF: //nolint:errorlint // the very value
		if more := in.last(); more != nil {
			n, err = 0, more
		}
	}
	if err != nil && err != io.EOF { //nolint:errorlint // likewise
		in.err = err
	}
	return n, err
}

// last returns nil where the form ends here.
func (in *incoming) last() error {
	part, err := in.rest.NextPart()
	switch {
	case err == io.EOF: //nolint:errorlint // the very value
		return nil
	case err != nil:
		return err
	case part.FormName() == "file":
		return wrongFile(CodeInvalidField, "`file` is given twice; send one file in a request.")
	}
	return unknownPart(part)
}

func wrongFile(code Code, detail string) error {
	return mistaken([]Mistake{{Code: code, Field: "file", Detail: detail}})
}

func unknownPart(part *multipart.Part) error {
	var f form
	f.wrong(part.FormName(), CodeUnknownField, 0, "is not known here; what is: file")
	return mistaken(f.mistakes)
}

func (a *api) tooLarge() error {
	return mistaken([]Mistake{{
		Code: CodeBodyTooLarge, Field: "file", Limit: int(a.cfg.Limits.File), Detail: fmt.Sprintf("`file` may have at most %d bytes.", a.cfg.Limits.File),
	}})
}

// unreadable says why a form could not be read.
func (a *api) unreadable(err error) error {
	var tooLarge *http.MaxBytesError
	var p *Problem
	switch {
	case errors.As(err, &tooLarge), errors.Is(err, errTooLarge):
		return a.tooLarge()
	case errors.As(err, &p), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.DeadlineExceeded
	case err == io.EOF: //nolint:errorlint // the very value
		return wrongFile(CodeInvalidField, "`file` is missing: the form has no part of that name.")
	}
	return wrongFile(CodeInvalidField, "The form could not be read whole.")
}

// fileName returns the name in a part's head. Go's own reader would cut a path off without a word.
func fileName(part *multipart.Part) (string, error) {
	if part.FormName() != "file" {
		return "", unknownPart(part)
	}
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return "", wrongFile(CodeInvalidField, "`file` has a Content-Disposition that cannot be read.")
	}
	if why := files.UnfitName(params["filename"]); why != "" {
		return "", wrongFile(CodeInvalidField, "`file` "+why+".")
	}
	return params["filename"], nil
}

func (a *api) listFiles(c *gin.Context) (any, error) {
	p, err := page(c)
	if err != nil {
		return nil, err
	}
	list, err := a.store.Files(c.Request.Context(), owner(c), p)
	return newestFirst(list, p), err
}

func (a *api) getFile(c *gin.Context) (any, error) {
	id, err := param(c, "file")
	if err != nil {
		return nil, err
	}
	return a.store.File(c.Request.Context(), owner(c), id)
}

// download sends a file's content, or the ranges of it that are asked for. What people upload is never shown as a page of
// this server's.
func (a *api) download(c *gin.Context) error {
	id, err := param(c, "file")
	if err != nil {
		return err
	}
	f, err := a.store.File(c.Request.Context(), owner(c), id)
	if err != nil {
		return err
	}
	content, err := a.cfg.Files.Open(c.Request.Context(), f.ID, f.Size)
	if err != nil {
		if errors.Is(err, thread.ErrNotFound) { // the row says that it is there
			err = fmt.Errorf("content of %s: %w", f.ID, errGone)
		}
		return err
	}
	defer content.Close()
	h := c.Writer.Header()
	h.Set("Content-Type", f.Type)
	h.Set("Content-Disposition", disposition(f.Name))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "private, no-cache")
	h.Set("ETag", `"`+f.SHA256+`"`)
	if r := c.GetHeader("Range"); r != "" && !within(r, f.Size) {
		c.Request.Header.Del("Range") // the whole is an answer too
	}
	http.ServeContent(c.Writer, c.Request, "", f.CreatedAt, content)
	return nil
}

// within reports whether a Range asks for one range that begins inside the file.
func within(header string, size int64) bool {
	from, to, ok := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	if !ok || strings.Contains(header, ",") || !strings.HasPrefix(header, "bytes=") {
		return false
	}
	if from == "" {
		n, err := strconv.ParseUint(to, 10, 63)
		return err == nil && n > 0
	}
	first, err := strconv.ParseUint(from, 10, 63)
	last, toErr := first, error(nil)
	if to != "" {
		last, toErr = strconv.ParseUint(to, 10, 63)
	}
	return err == nil && toErr == nil && first <= last && first < uint64(size)
}

var errGone = errors.New("not in the file store")

// disposition names a file for the client to keep: in ASCII for old clients, and as it is, as RFC 6266 has it.
func disposition(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\%`, r) {
			return '_'
		}
		return r
	}, name)
	s := `attachment; filename="` + plain + `"`
	if plain == name {
		return s
	}
	return s + "; filename*=UTF-8''" + percent(name)
}

// percent encodes what is no attr-char of RFC 5987.
func percent(s string) string {
	var out strings.Builder
	for _, b := range []byte(s) {
		if 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("!#$&+-.^_`|~", b) >= 0 {
			out.WriteByte(b)
		} else {
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}

func (a *api) deleteFile(c *gin.Context) (any, error) {
	id, _, err := a.bare(c, "file") // what is deleted twice is not found
	if err != nil {
		return nil, err
	}
	err = a.store.DeleteFile(c.Request.Context(), owner(c), id)
	if errors.Is(err, thread.ErrConflict) {
		return nil, &Problem{Status: http.StatusConflict, Code: CodeConflict, Detail: "The file is attached to a message. Withdraw the message first, if it still waits."}
	}
	if err != nil {
		return nil, err
	}
	a.drop(c.Request.Context(), id)
	return Deleted{ID: id, Deleted: true}, nil
}

// Deleted says what is gone.
type Deleted struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
}

// SweepFiles removes what uploads and deletions left that broke off more than age ago, at most limit of them, and returns
// how many. Any number of processes may sweep at once.
func SweepFiles(ctx context.Context, db *store.DB, blobs Blobs, age time.Duration, limit int) (int, error) {
	ids, err := db.Unsettled(ctx, age, limit)
	if err != nil {
		return 0, err
	}
	for n, id := range ids {
		if err := blobs.Delete(ctx, id); err != nil {
			return n, err
		}
		if err := db.ForgetFile(ctx, id); err != nil {
			return n, err
		}
	}
	return len(ids), nil
}
