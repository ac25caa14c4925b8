package files_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"bobbin/files"
)

var reader = files.Reader{MaxText: 1000, Timeout: 5 * time.Minute}

func TestTextOfAnyEncodingIsRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ raw, want string }{
		"UTF-8":                       {"Wolle für 5 €", "Wolle für 5 €"},
		"UTF-8 with a mark":           {"\xef\xbb\xbfWolle", "Wolle"},
		"UTF-16, little end first":    {"\xff\xfeW\x00\xfc\x00", "Wü"},
		"UTF-16, big end first":       {"\xfe\xff\x00W\x00\xfc", "Wü"},
		"half a character of UTF-16":  {"\xff\xfeW\x00\xfc", "W\ufffd"},
		"Windows":                     {"f\xfcr 5 \x80", "für 5 €"},
		"NUL, which Postgres refuses": {"a\x00b", "ab"},
	} {
		text, note, err := reader.Text(t.Context(), "text/plain", strings.NewReader(c.raw))
		require.NoError(t, err, name)
		require.Equal(t, c.want, text, name)
		require.Empty(t, note, name)
	}
}

func TestLongTextIsCutWithANote(t *testing.T) {
	t.Parallel()
	text, note, err := reader.Text(t.Context(), "text/plain", strings.NewReader(strings.Repeat("é", 1001)))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("é", 1000), text)
	require.Contains(t, note, "first 1000 characters")
	_, note, err = reader.Text(t.Context(), "text/plain", strings.NewReader(" \n"))
	require.NoError(t, err)
	require.Contains(t, note, "no text")
}

func TestPDFsAreReadOrSaidToBeUnreadable(t *testing.T) {
	t.Parallel()
	whole := PDF("Hello wool trade", "Second page")
	for name, c := range map[string]struct{ raw, text, note string }{
		"two pages":       {whole, "Hello wool trade\n\nSecond page", ""},
		"longer":          {PDF(strings.Repeat("wool ", 300)), "wool wool", "Only its first"},
		"no text":         {PDF(" "), "", "no text, as scans"},
		"cut off":         {whole[:200], "", "damaged"},
		"only a head":     {"%PDF-1.7\n", "", "damaged"},
		"with a password": {encrypted(t), "", "password"},
	} {
		text, note, err := reader.Text(t.Context(), "application/pdf", strings.NewReader(c.raw))
		require.NoError(t, err, name)
		if c.text == "" {
			require.Empty(t, text, name)
		}
		require.True(t, strings.HasPrefix(text, c.text), "%s: %q", name, text)
		require.Contains(t, note, c.note, name)
		require.Equal(t, c.note == "", note == "", "%s: %q", name, note)
	}
}

func TestAPDFThatTakesTooLongIsSaidSo(t *testing.T) {
	t.Parallel()
	_, _, err := reader.Text(t.Context(), "application/pdf", strings.NewReader(PDF("warm"))) // PDFium is compiled at first use
	require.NoError(t, err)
	_, note, err := files.Reader{MaxText: 1 << 30, Timeout: time.Second}.Text(t.Context(), "application/pdf", strings.NewReader(endless()))
	require.NoError(t, err)
	require.Contains(t, note, "too long")
	text, note, err := reader.Text(t.Context(), "application/pdf", strings.NewReader(PDF("The next one")))
	require.NoError(t, err)
	require.Equal(t, "The next one", text, "its machine was its own: %s", note)
}

func TestReadingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := reader.Text(ctx, "application/pdf", strings.NewReader(PDF("x")))
	require.ErrorIs(t, err, context.Canceled)
}

// PDF makes one with a line on each page.
func PDF(pages ...string) string {
	streams := make([]string, len(pages))
	for i, line := range pages {
		streams[i] = "BT /F1 9 Tf 72 700 Td (" + line + ") Tj ET"
	}
	return pdfOf(streams, "")
}

// endless is one of very many pages, each of which takes a while.
func endless() string {
	streams := make([]string, 3000)
	for i := range streams {
		streams[i] = strings.Repeat("BT /F1 9 Tf 72 700 Td (wool and more wool) Tj ET\n", 300)
	}
	return pdfOf(streams, "")
}

func pdfOf(streams []string, trailer string) string {
	var out strings.Builder
	var offsets []int
	object := func(body string) {
		offsets = append(offsets, out.Len())
		fmt.Fprintf(&out, "%d 0 obj\n%s\nendobj\n", len(offsets), body)
	}
	out.WriteString("%PDF-1.4\n")
	var kids strings.Builder
	for i := range streams {
		fmt.Fprintf(&kids, "%d 0 R ", 4+2*i)
	}
	object("<< /Type /Catalog /Pages 2 0 R >>")
	object(fmt.Sprintf("<< /Type /Pages /Kids [%s] /Count %d >>", kids.String(), len(streams)))
	object("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
	for i, s := range streams {
		object(fmt.Sprintf("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>", 5+2*i))
		object(fmt.Sprintf("<< /Length %d >>\nstream\n%s\nendstream", len(s), s))
	}
	xref := out.Len()
	fmt.Fprintf(&out, "xref\n0 %d\n0000000000 65535 f \n", len(offsets)+1)
	for _, at := range offsets {
		fmt.Fprintf(&out, "%010d 00000 n \n", at)
	}
	fmt.Fprintf(&out, "trailer << /Size %d /Root 1 0 R %s>>\nstartxref\n%d\n%%%%EOF\n", len(offsets)+1, trailer, xref)
	return out.String()
}

// encrypted is a PDF that names a standard encryption whose password is not the empty one.
func encrypted(t *testing.T) string {
	t.Helper()
	return pdfOf([]string{"BT ET"}, "/ID [<"+strings.Repeat("61", 16)+"> <"+strings.Repeat("61", 16)+">] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <"+
		strings.Repeat("31", 32)+"> /U <"+strings.Repeat("32", 32)+"> >> ")
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "\xff\xfe", "\xfe\xff\xd8", "\xef\xbb\xbf\xff", "a\x00b", "\x80\x81"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, note, err := files.Reader{MaxText: 100, Timeout: time.Second}.Text(t.Context(), "text/plain", strings.NewReader(string(raw)))
		require.NoError(t, err)
		require.True(t, utf8.ValidString(text))
		require.NotContains(t, text, "\x00")
		require.LessOrEqual(t, utf8.RuneCountInString(text), 100)
		require.True(t, note != "" || strings.TrimSpace(text) != "")
	})
}

func FuzzPDF(f *testing.F) {
	f.Add([]byte(PDF("Hello", "wool")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, note, err := files.Reader{MaxText: 100, Timeout: 20 * time.Second}.Text(t.Context(), "application/pdf", strings.NewReader(string(raw)))
		require.NoError(t, err)
		require.True(t, utf8.ValidString(text))
		require.True(t, note != "" || text != "")
	})
}
