package tools

import (
	"bytes"
	"strings"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// registerTables lets a converter write a table's rows as lines. The library's plugin for tables pads each row to the
// widest, each cell to the longest, and writes a cell that spans others once for each, so a small page can ask for any
// amount of memory.
func registerTables(c *converter.Converter) {
	for _, name := range []string{"thead", "tbody", "tfoot"} {
		c.Register.RendererFor(name, converter.TagTypeBlock, renderSection, converter.PriorityEarly)
	}
	c.Register.RendererFor("tr", converter.TagTypeBlock, renderRow, converter.PriorityEarly)
	c.Register.TagType("caption", converter.TagTypeBlock, converter.PriorityEarly)
	c.Register.TagType("td", converter.TagTypeBlock, converter.PriorityEarly)
	c.Register.TagType("th", converter.TagTypeBlock, converter.PriorityEarly)
}

func renderSection(ctx converter.Context, w converter.Writer, section *html.Node) converter.RenderStatus {
	ctx.RenderChildNodes(ctx, w, section)
	return converter.RenderSuccess
}

// renderRow writes a row of data as one line. What stands in a row that lays out the page becomes paragraphs.
func renderRow(ctx converter.Context, w converter.Writer, row *html.Node) converter.RenderStatus {
	var cells []*html.Node
	for n := range row.ChildNodes() {
		if n.DataAtom == atom.Td || n.DataAtom == atom.Th {
			cells = append(cells, n)
		}
	}
	if len(cells) < 2 || layout(row) {
		return converter.RenderTryNext
	}
	_, _ = w.WriteString("|")
	for _, cell := range cells {
		var text bytes.Buffer
		ctx.RenderChildNodes(ctx, &text, cell)
		_, _ = w.WriteString(" " + strings.Join(strings.Fields(text.String()), " ") + " |")
	}
	_, _ = w.WriteString("\n")
	if first(row) {
		_, _ = w.WriteString("|" + strings.Repeat("---|", len(cells)) + "\n")
	}
	return converter.RenderSuccess
}

// layout reports whether a row holds what needs lines of its own.
func layout(row *html.Node) bool {
	for n := range row.Descendants() {
		switch n.DataAtom {
		case atom.Table, atom.Ul, atom.Ol, atom.Pre, atom.Blockquote, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
			return true
		}
	}
	return false
}

// first reports whether a row is its table's first.
func first(row *html.Node) bool {
	for n := row; n != nil && n.DataAtom != atom.Table; n = n.Parent {
		for before := n.PrevSibling; before != nil; before = before.PrevSibling {
			if before.DataAtom == atom.Tr || before.DataAtom == atom.Thead || before.DataAtom == atom.Tbody {
				return false
			}
		}
	}
	return true
}
