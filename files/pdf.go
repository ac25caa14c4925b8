package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/klippa-app/go-pdfium"
	pdferrors "github.com/klippa-app/go-pdfium/errors"
	"github.com/klippa-app/go-pdfium/requests"
	"github.com/klippa-app/go-pdfium/webassembly"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"bobbin/thread"
)

// PDFs come from anywhere, so PDFium reads them inside a WebAssembly machine: without files, network or clock, with so much
// memory, and to be stopped at any instruction. A broken file breaks its own machine and no other's.
const (
	pdfMachines    = 2        // at once
	pdfMemoryPages = 256 << 4 // of 64 KiB: 256 MiB
)

// A compilation makes machine code of PDFium, which takes some seconds. It is kept in the user's cache folder, where there
// is one, for the next process.
type compilation struct {
	done chan struct{}
	pool pdfium.Pool
	err  error
}

// compiled starts the compilation at first use.
var compiled = sync.OnceValue(func() *compilation {
	c := &compilation{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		cfg := wazero.NewRuntimeConfig().
			WithCoreFeatures(api.CoreFeaturesV2 | experimental.CoreFeaturesExceptionHandling).
			WithMemoryLimitPages(pdfMemoryPages).WithCloseOnContextDone(true)
		if dir, err := os.UserCacheDir(); err == nil {
			if cache, err := wazero.NewCompilationCacheWithDir(filepath.Join(dir, "bobbin", "pdfium")); err == nil {
				cfg = cfg.WithCompilationCache(cache)
			}
		}
		c.pool, c.err = webassembly.Init(webassembly.Config{
			MaxTotal: pdfMachines, FSConfig: wazero.NewFSConfig(), Stdout: io.Discard, Stderr: io.Discard, RuntimeConfig: cfg,
		})
	}()
	return c
})

// newMachine waits for one until ctx ends.
func newMachine(ctx context.Context) (pdfium.Pdfium, error) {
	c := compiled()
	select {
	case <-c.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.pool.GetInstanceWithContext(ctx)
}

// What the model is told of a PDF that cannot be read.
const (
	notePassword = "This PDF is protected by a password and cannot be read. Ask for a copy without one."
	noteBroken   = "This PDF is damaged and cannot be read."
	noteSlow     = "This PDF took too long to read; what was read until then is here."
	noteNoText   = "This PDF has no text, as scans do; its pages cannot be seen."
)

// readPDF returns the text of a PDF's pages, at most limit characters and perhaps some of the page that passes it. timeout
// counts from when there is a machine to read it. The error is ErrUnavailable where none could be had.
func readPDF(ctx context.Context, raw []byte, limit int, timeout time.Duration) (text string, cut bool, note string, err error) {
	machine, err := newMachine(ctx)
	if err != nil {
		return "", false, "", fmt.Errorf("read PDF: %w: %w", thread.ErrUnavailable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Killed in any case: a machine is used once, and Kill ends what still runs in it.
	kill := sync.OnceFunc(func() { _ = machine.Kill() })
	defer kill()
	defer context.AfterFunc(ctx, kill)()
	var out strings.Builder
	err = readPages(ctx, machine, raw, func(page string) bool {
		out.WriteString(page)
		cut = utf8.RuneCountInString(out.String()) > limit
		return !cut
	})
	text = strings.TrimSpace(out.String())
	switch {
	case ctx.Err() != nil:
		note = noteSlow
	case errors.Is(err, pdferrors.ErrPassword), errors.Is(err, pdferrors.ErrSecurity):
		note = notePassword
	case err != nil && text == "":
		note = noteBroken
	case text == "":
		note = noteNoText
	}
	return text, cut, note, nil
}

func readPages(ctx context.Context, machine pdfium.Pdfium, raw []byte, add func(string) bool) (err error) {
	defer func() { // the library panics where it does not expect what the machine answers
		if p := recover(); p != nil {
			err = fmt.Errorf("read PDF: %T", p)
		}
	}()
	doc, err := machine.OpenDocument(&requests.OpenDocument{File: &raw})
	if err != nil {
		return err
	}
	count, err := machine.FPDF_GetPageCount(&requests.FPDF_GetPageCount{Document: doc.Document})
	if err != nil {
		return err
	}
	for i := 0; i < count.PageCount && ctx.Err() == nil; i++ {
		page, pageErr := machine.GetPageText(&requests.GetPageText{Page: requests.Page{ByIndex: &requests.PageByIndex{Document: doc.Document, Index: i}}})
		if pageErr != nil {
			err = pageErr // the others may be whole
			continue
		}
		if !add(strings.ReplaceAll(strings.TrimSpace(page.Text), "\r\n", "\n") + "\n\n") {
			return nil
		}
	}
	return err
}
