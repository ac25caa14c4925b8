package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
)

// postgresVar is another way to give -postgres: arguments can be read by everyone
// on the machine, and a DSN may hold a password.
const postgresVar = "DEVSERVER_POSTGRES"

// options are what the command line says.
type options struct {
	ip, uiIP         string
	port             int // the frontend's gRPC port
	uiPort           int // 0: no UI
	httpPort         int // the frontend's HTTP port, which Nexus needs; 0: any
	dbFilename       string
	postgres         string
	namespaces       []string
	retention        time.Duration // of namespaces that don't exist yet
	searchAttributes map[string]enumspb.IndexedValueType
	dynamicConfig    map[string]any
	logLevel         string
	logFormat        string
	withParent       bool
}

func (o *options) address() string   { return net.JoinHostPort(o.ip, strconv.Itoa(o.port)) }
func (o *options) uiAddress() string { return net.JoinHostPort(o.uiIP, strconv.Itoa(o.uiPort)) }

// parse reads the command line and fills in what it leaves out.
func parse(args []string, usage io.Writer) (*options, error) {
	if len(args) >= 2 && args[0] == "server" && args[1] == "start-dev" {
		args = args[2:]
	}
	o := &options{
		namespaces:       []string{"default"}, // always made, as `temporal server start-dev` does
		searchAttributes: map[string]enumspb.IndexedValueType{},
		dynamicConfig:    map[string]any{},
	}
	fs := flag.NewFlagSet("devserver", flag.ContinueOnError)
	fs.SetOutput(usage)
	fs.StringVar(&o.ip, "ip", "127.0.0.1", "address to listen on")
	fs.StringVar(&o.uiIP, "ui-ip", "", "address of the Web UI (default: that of -ip)")
	fs.IntVar(&o.port, "port", 7233, "port of the frontend (gRPC)")
	fs.IntVar(&o.uiPort, "ui-port", 0, "port of the Web UI (default: -port plus 1000)")
	fs.IntVar(&o.httpPort, "http-port", 0, "port of the frontend's HTTP API (default: any free one)")
	headless := fs.Bool("headless", false, "no Web UI")
	fs.StringVar(&o.dbFilename, "db-filename", "", "SQLite `file` to keep state in (default: memory)")
	fs.StringVar(&o.postgres, "postgres", "", "`DSN` of a Postgres database to keep state in (default: $"+postgresVar+"), a URL or key=value pairs; a host that begins with / is a unix socket's folder")
	fs.DurationVar(&o.retention, "retention", 72*time.Hour, "how long closed workflows of a new namespace are kept")
	fs.StringVar(&o.logLevel, "log-level", "error", "debug, info, warn, error, fatal or never")
	fs.StringVar(&o.logFormat, "log-format", "json", "json, or text for lines that people read")
	fs.BoolVar(&o.withParent, "stop-with-parent", false, "stop when the parent process ends")
	fs.Func("namespace", "`name` of a namespace to make, beside default; repeatable", o.addNamespace)
	fs.Func("search-attribute", "`name=Type` for each namespace; repeatable", o.addSearchAttribute)
	fs.Func("dynamic-config-value", "`key=json`; repeatable", o.addDynamicConfig)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.postgres == "" && o.dbFilename == "" {
		o.postgres = os.Getenv(postgresVar)
	}
	if o.postgres != "" && o.dbFilename != "" {
		return nil, fmt.Errorf("-postgres and -db-filename exclude each other")
	}
	if o.uiIP == "" {
		o.uiIP = o.ip
	}
	switch {
	case *headless:
		o.uiPort = 0
	case o.uiPort == 0:
		o.uiPort = o.port + 1000
	}
	return o, nil
}

func (o *options) addNamespace(name string) error {
	if name == "" {
		return fmt.Errorf("a namespace needs a name")
	}
	for _, have := range o.namespaces {
		if have == name {
			return nil
		}
	}
	o.namespaces = append(o.namespaces, name)
	return nil
}

func (o *options) addSearchAttribute(pair string) error {
	name, kind, ok := strings.Cut(pair, "=")
	if !ok || name == "" {
		return fmt.Errorf("want name=Type")
	}
	t, err := enumspb.IndexedValueTypeFromString(kind)
	if err != nil || t == enumspb.INDEXED_VALUE_TYPE_UNSPECIFIED {
		return fmt.Errorf("%q is no type; want Text, Keyword, Int, Double, Bool, Datetime or KeywordList", kind)
	}
	o.searchAttributes[name] = t
	return nil
}

func (o *options) addDynamicConfig(pair string) error {
	key, text, ok := strings.Cut(pair, "=")
	if !ok || key == "" {
		return fmt.Errorf("want key=json")
	}
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return fmt.Errorf("value of %s: %w", key, err)
	}
	if f, ok := value.(float64); ok && f == math.Trunc(f) {
		value = int(f) // settings of whole numbers refuse a float
	}
	o.dynamicConfig[key] = value
	return nil
}
