package tools

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"
)

// form says how a page becomes text.
type form int

const (
	unreadable form = iota
	plain           // as it is
	hypertext       // as Markdown
)

func mediaType(header string) string {
	media, _, err := mime.ParseMediaType(header)
	if err != nil { // a wrong parameter does not matter
		media, _, _ = strings.Cut(header, ";")
	}
	return strings.ToLower(strings.TrimSpace(media))
}

func formOf(media string) form {
	switch {
	case media == "text/html", media == "application/xhtml+xml":
		return hypertext
	case strings.HasPrefix(media, "text/"), media == "application/json", media == "application/xml":
		return plain
	case strings.HasSuffix(media, "+json"), strings.HasSuffix(media, "+xml"):
		return plain
	default:
		return unreadable
	}
}

// pageText returns a page as text. header is its whole Content-Type, which may name a charset.
func pageText(body []byte, media, header string, at *url.URL) (string, error) {
	switch formOf(media) {
	case plain:
		return toUTF8(body, header), nil
	case hypertext:
		return markdown(toUTF8(body, header), at), nil
	default:
		return "", errors.New("the page is neither HTML nor text and cannot be read here")
	}
}

// toUTF8 decodes a page by its byte order mark, its header or its <meta>. Where they name none, and where they name the
// usual wrong one, a page that is valid UTF-8 is taken as that: the library looks at the first 1024 bytes only.
func toUTF8(body []byte, header string) string {
	encoding, name, certain := charset.DetermineEncoding(body, header)
	if name == "utf-8" || (!certain || name == "windows-1252") && name != "iso-2022-jp" && validUTF8(body) {
		return strings.TrimPrefix(string(body), "\uFEFF")
	}
	text, err := encoding.NewDecoder().Bytes(body)
	if err != nil {
		return string(body)
	}
	return strings.TrimPrefix(string(text), "\uFEFF")
}

// validUTF8 reports whether b is valid UTF-8, perhaps cut within its last character.
func validUTF8(b []byte) bool {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				b = b[:i]
			}
			break
		}
	}
	return utf8.Valid(b)
}

// toMarkdown is safe for concurrent use. It escapes nothing: the text is read, not rendered.
var toMarkdown = sync.OnceValue(func() *converter.Converter {
	c := converter.NewConverter(
		converter.WithEscapeMode(converter.EscapeModeDisabled),
		converter.WithPlugins(base.NewBasePlugin(), commonmark.NewCommonmarkPlugin()),
	)
	registerTables(c)
	return c
})

// markdown returns an HTML page as its title, its address and Markdown with whole addresses in its links.
func markdown(page string, at *url.URL) string {
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil || nesting(doc) > maxNesting { // the parser's own limit is 512 elements of any kind
		return bareText(page)
	}
	title := prepare(doc)
	text, err := toMarkdown().ConvertNode(doc, converter.WithDomain(at.String()))
	if err != nil {
		return bareText(page)
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		text = []byte("[The page holds no text. It may need a browser to show it.]")
	}
	return fmt.Sprintf("Title: %s\nAddress: %s\n\n%s\n", title, at, text)
}

// maxNesting is how deep lists, quotes and tables may be nested. The converter writes a prefix before each line for each
// of them, so a small page could become a very great one.
const maxNesting = 24

func nesting(n *html.Node) int {
	deepest := 0
	for child := range n.ChildNodes() {
		deepest = max(deepest, nesting(child))
	}
	switch n.DataAtom {
	case atom.Blockquote, atom.Ol, atom.Table, atom.Ul:
		deepest++
	}
	return deepest
}

// prepare returns the title and takes away what is not text: pictures written into the page, drawings, templates.
func prepare(doc *html.Node) (title string) {
	var remove []*html.Node
	for n := range doc.Descendants() {
		switch {
		case n.DataAtom == atom.Title && title == "" && n.FirstChild != nil:
			title = strings.Join(strings.Fields(n.FirstChild.Data), " ")
		case n.DataAtom == atom.Svg, n.DataAtom == atom.Template, n.DataAtom == atom.Img && inline(n):
			remove = append(remove, n)
		}
	}
	for _, n := range remove {
		if n.Parent != nil {
			n.Parent.RemoveChild(n)
		}
	}
	return title
}

func inline(img *html.Node) bool {
	for _, a := range img.Attr {
		if a.Key == "src" && strings.HasPrefix(strings.TrimSpace(a.Val), "data:") {
			return true
		}
	}
	return false
}

// bareText returns the text between the tags.
func bareText(page string) string {
	var text strings.Builder
	z := html.NewTokenizer(strings.NewReader(page))
	skip := false
	for {
		switch z.Next() {
		case html.ErrorToken:
			return text.String()
		case html.TextToken:
			if words := strings.Fields(string(z.Text())); !skip && len(words) > 0 {
				text.WriteString(strings.Join(words, " ") + "\n")
			}
		case html.StartTagToken:
			name, _ := z.TagName()
			skip = atom.Lookup(name) == atom.Script || atom.Lookup(name) == atom.Style
		case html.EndTagToken:
			skip = false
		}
	}
}
