package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultFetchSize is how many bytes of a page, unpacked, fetch_url reads.
	DefaultFetchSize = 2 << 20
	// DefaultFetchTimeout is the time that fetch_url takes at most, redirects included.
	DefaultFetchTimeout = 20 * time.Second
	// maxRedirects is how many redirects are followed.
	maxRedirects = 5
	// maxURL is how long an address may be, in bytes: https://www.rfc-editor.org/rfc/rfc9110#section-4.1-5
	maxURL = 8000
	// maxResponseHeader is how many bytes of header a page may send.
	maxResponseHeader = 64 << 10
)

//go:embed fetch_url.md
var fetchURLDescription string

// FetchOptions change fetch_url. The zero value is right in production.
type FetchOptions struct {
	// Allow lists networks that may be fetched from though they are not public, for tests and development.
	Allow    []netip.Prefix
	Resolver *net.Resolver // nil: the system's
	Size     int64         // bytes of a page that are read; 0: DefaultFetchSize
	Timeout  time.Duration // 0: DefaultFetchTimeout
}

// FetchURL returns the tool fetch_url, which reads one page from the public Internet. Every address is checked as it is
// dialled, after DNS and after each redirect. Of the ports below 1024 only 80 and 443 are dialled: the others belong to
// services that do not speak HTTP. No proxy is used, for it would do the dialling; no cookie is kept, no credential sent.
// What this server itself offers on a public address can be fetched like any other page.
func FetchURL(o FetchOptions) Tool {
	f := &fetcher{size: o.Size}
	if f.size == 0 {
		f.size = DefaultFetchSize
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultFetchTimeout
	}
	f.client = newFetchClient(o)
	return Tool{
		Name:        "fetch_url",
		Description: fetchURLDescription,
		Parameters: json.RawMessage(`{
			"type": "object",
			"properties": {"url": {"type": "string", "description": "The whole address of the page, beginning with https:// or http://."}},
			"required": ["url"],
			"additionalProperties": false
		}`),
		ReadOnly: true,
		Timeout:  o.Timeout,
		Run:      f.run,
	}
}

func newFetchClient(o FetchOptions) *http.Client {
	dialer := &net.Dialer{ControlContext: control(o.Allow), Resolver: o.Resolver}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dialer.DialContext,
			DisableKeepAlives:      true,
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: maxResponseHeader,
		},
		CheckRedirect: checkRedirect,
	}
}

type fetcher struct {
	client *http.Client
	size   int64
}

func (f *fetcher) run(ctx context.Context, c Call) (string, error) {
	var in struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(c.Arguments, &in); err != nil {
		return "", err
	}
	u, err := pageURL(in.URL)
	if err != nil {
		return "", err
	}
	resp, err := f.get(ctx, u)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	return f.read(resp)
}

// pageURL reads an address and checks what can be checked before DNS.
func pageURL(s string) (*url.URL, error) {
	s = strings.TrimSpace(s)
	if len(s) > maxURL {
		return nil, fmt.Errorf("the address is longer than %d bytes", maxURL)
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("that is not a valid address. Write the whole address, such as https://example.com/page")
	}
	return u, checkURL(u)
}

func checkURL(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("only addresses that begin with https:// or http:// can be fetched")
	case u.Hostname() == "":
		return errors.New("the address names no host. Write the whole address, such as https://example.com/page")
	case u.User != nil:
		return errors.New("an address with a user name or password is not fetched. Leave them out")
	case !httpPort(u.Port()):
		return fmt.Errorf("port %s is not fetched: of the ports below 1024 only 80 and 443 are", u.Port())
	}
	return nil
}

func httpPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && (n == 80 || n == 443 || n >= 1024)
}

func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	}
	req.Header.Del("Referer") // the page before is nobody's business
	if err := checkURL(req.URL); err != nil {
		return fmt.Errorf("it redirects to another address, and %w", err)
	}
	return nil
}

// get asks for a page and returns an answer with a status of 2xx, whose body the caller closes.
func (f *fetcher) get(ctx context.Context, u *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("that is not a valid address")
	}
	req.Header.Set("User-Agent", "Bobbin (fetch_url)")
	req.Header.Set("Accept", "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, */*;q=0.1")
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, unreachable(err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		resp.Body.Close()
		return nil, fmt.Errorf("the page answered HTTP %d %s. Check the address or use another page", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return resp, nil
}

// unreachable says why a page could not be fetched, without the addresses of resolvers and hosts of the inner network.
func unreachable(err error) error {
	err = inner(err)
	if errors.Is(err, errNotPublic) {
		return fmt.Errorf("the page was not fetched: %w. Only public pages can be fetched", errNotPublic)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("the host name %.255q could not be looked up. Check the address", dns.Name)
	}
	return fmt.Errorf("the page was not fetched: %w", err)
}

// read turns the page into text.
func (f *fetcher) read(resp *http.Response) (string, error) {
	header := resp.Header.Get("Content-Type")
	media := mediaType(header)
	if header != "" && formOf(media) == unreadable {
		return "", fmt.Errorf("the page is of type %.100s, which cannot be read here: only HTML, text, JSON and XML can", media)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, f.size+1))
	if err != nil && len(body) == 0 {
		return "", fmt.Errorf("the page broke off: %w", err)
	}
	if header == "" {
		header = http.DetectContentType(body)
		media = mediaType(header)
	}
	note := ""
	if err != nil || int64(len(body)) > f.size {
		body = body[:min(int64(len(body)), f.size)]
		note = fmt.Sprintf("\n\n[The page goes on; only its first %d bytes were read.]", len(body))
	}
	text, err := pageText(body, media, header, resp.Request.URL)
	return text + note, err
}
