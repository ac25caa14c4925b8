package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"bobbin/activities"
	"bobbin/agent"
	"bobbin/contract"
	"bobbin/files"
	"bobbin/llm"
	"bobbin/store"
	"bobbin/thread"
	"bobbin/tools"
	"bobbin/worker"
)

// config is all configuration. docs/operations.md has the table; a test holds the two together.
type config struct {
	Addr     string     `env:"BOBBIN_ADDR" envDefault:"127.0.0.1:8080"`
	DataDir  string     `env:"BOBBIN_DATA_DIR" envDefault:".bobbin"`
	LogLevel slog.Level `env:"BOBBIN_LOG_LEVEL" envDefault:"INFO"`

	Rate           float64  `env:"BOBBIN_RATE_LIMIT" envDefault:"50"`
	Burst          int      `env:"BOBBIN_RATE_BURST" envDefault:"200"`
	AuthFailures   int      `env:"BOBBIN_AUTH_FAILURE_LIMIT" envDefault:"30"`
	TrustedProxies []string `env:"BOBBIN_TRUSTED_PROXIES"`

	DatabaseURL    string        `env:"DATABASE_URL"`
	MaxConns       int           `env:"BOBBIN_DATABASE_CONNECTIONS" envDefault:"20"`
	EventRetention time.Duration `env:"BOBBIN_EVENT_RETENTION" envDefault:"720h"`
	KeyRetention   time.Duration `env:"BOBBIN_KEY_RETENTION" envDefault:"720h"`

	TemporalAddress   string        `env:"TEMPORAL_ADDRESS"`
	TemporalNamespace string        `env:"TEMPORAL_NAMESPACE" envDefault:"default"`
	TemporalUIPort    int           `env:"BOBBIN_TEMPORAL_UI_PORT" envDefault:"8233"`
	ThreadIdle        time.Duration `env:"BOBBIN_THREAD_IDLE" envDefault:"5m"`
	RollOver          int           `env:"BOBBIN_HISTORY_ROLL_OVER" envDefault:"2000"`
	Heartbeat         time.Duration `env:"BOBBIN_HEARTBEAT_TIMEOUT" envDefault:"10s"`

	OpenAIKey       string        `env:"OPENAI_API_KEY"`
	OpenAIURL       string        `env:"OPENAI_BASE_URL"`
	Model           string        `env:"BOBBIN_MODEL" envDefault:"gpt-5-mini"`
	MaxOutputTokens int           `env:"BOBBIN_MODEL_MAX_OUTPUT_TOKENS"`
	ModelContext    int           `env:"BOBBIN_MODEL_CONTEXT_TOKENS" envDefault:"128000"`
	CompactAt       float64       `env:"BOBBIN_COMPACT_AT" envDefault:"0.75"`
	CompactKeep     float64       `env:"BOBBIN_COMPACT_KEEP" envDefault:"0.25"`
	ModelFirstByte  time.Duration `env:"BOBBIN_MODEL_FIRST_BYTE_TIMEOUT" envDefault:"60s"`
	ModelIdle       time.Duration `env:"BOBBIN_MODEL_IDLE_TIMEOUT" envDefault:"60s"`
	ModelTimeout    time.Duration `env:"BOBBIN_MODEL_TIMEOUT" envDefault:"10m"`

	PricesFile   string        `env:"BOBBIN_PRICES_FILE"`
	MonthlyLimit string        `env:"BOBBIN_MONTHLY_LIMIT_USD"`
	ReserveWait  time.Duration `env:"BOBBIN_RESERVE_WAIT" envDefault:"20s"`
	ReservedOut  int           `env:"BOBBIN_RESERVE_OUTPUT_TOKENS" envDefault:"16384"`
	LeastOut     int           `env:"BOBBIN_RESERVE_LEAST_OUTPUT_TOKENS" envDefault:"1024"`
	TurnTokens   int64         `env:"BOBBIN_TURN_MAX_TOKENS"`
	TurnCost     string        `env:"BOBBIN_TURN_MAX_COST_USD"`

	ToolsFile string `env:"BOBBIN_TOOLS_FILE"`

	TurnRounds     int           `env:"BOBBIN_TURN_MAX_ROUNDS" envDefault:"40"`
	TurnDuration   time.Duration `env:"BOBBIN_TURN_MAX_DURATION" envDefault:"40m"`
	TurnToolCalls  int           `env:"BOBBIN_TURN_MAX_TOOL_CALLS" envDefault:"400"`
	WrapUp         time.Duration `env:"BOBBIN_WRAP_UP_DURATION" envDefault:"2m"`
	TakeTimeout    time.Duration `env:"BOBBIN_TAKE_TIMEOUT" envDefault:"2s"`
	MaxAttachments int           `env:"BOBBIN_MAX_ATTACHMENTS" envDefault:"10"`
	MaxText        int           `env:"BOBBIN_MAX_TEXT" envDefault:"200000"`

	StintRounds   int           `env:"BOBBIN_STINT_MAX_ROUNDS" envDefault:"20"`
	StintDuration time.Duration `env:"BOBBIN_STINT_MAX_DURATION" envDefault:"60s"`
	StintWait     time.Duration `env:"BOBBIN_STINT_MAX_WAIT" envDefault:"1s"`
	Stints        int           `env:"BOBBIN_WORKER_STINTS" envDefault:"100"`
	Tools         int           `env:"BOBBIN_WORKER_TOOLS" envDefault:"100"`
	Tasks         int           `env:"BOBBIN_WORKER_WORKFLOW_TASKS" envDefault:"50"`
	DrainTimeout  time.Duration `env:"BOBBIN_DRAIN_TIMEOUT" envDefault:"30s"`

	Versioning string        `env:"BOBBIN_WORKER_VERSIONING" envDefault:"off"`
	BuildID    string        `env:"BOBBIN_BUILD_ID"`
	WorkerAddr string        `env:"BOBBIN_WORKER_ADDR"`
	DrainDelay time.Duration `env:"BOBBIN_DRAIN_DELAY" envDefault:"1s"`

	// The exporters read the other OTEL_ variables by themselves.
	TraceEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	TraceProtocol string `env:"OTEL_EXPORTER_OTLP_PROTOCOL" envDefault:"http/protobuf"`

	FilesDir        string        `env:"BOBBIN_FILES_DIR"`
	FilesBucket     string        `env:"BOBBIN_FILES_BUCKET"`
	FilesEndpoint   string        `env:"BOBBIN_FILES_ENDPOINT"`
	FilesRegion     string        `env:"BOBBIN_FILES_REGION" envDefault:"us-east-1"`
	FilesAccessKey  string        `env:"BOBBIN_FILES_ACCESS_KEY"`
	FilesSecretKey  string        `env:"BOBBIN_FILES_SECRET_KEY"`
	FilesPathStyle  bool          `env:"BOBBIN_FILES_PATH_STYLE" envDefault:"true"`
	MaxFile         int64         `env:"BOBBIN_MAX_FILE_BYTES" envDefault:"20971520"`
	FileTypes       []string      `env:"BOBBIN_FILE_TYPES" envDefault:"image/png,image/jpeg,image/gif,image/webp,text/*,application/json,application/pdf"`
	TransferTimeout time.Duration `env:"BOBBIN_FILE_TRANSFER_TIMEOUT" envDefault:"10m"`
	FileText        int           `env:"BOBBIN_FILE_MAX_TEXT" envDefault:"50000"`
	FileReading     time.Duration `env:"BOBBIN_FILE_READ_TIMEOUT" envDefault:"30s"`
	FilePatience    time.Duration `env:"BOBBIN_FILE_FETCH_TIMEOUT" envDefault:"20s"`
	Vision          string        `env:"BOBBIN_MODEL_VISION" envDefault:"auto"`
	MaxImages       int           `env:"BOBBIN_MODEL_MAX_IMAGES" envDefault:"5"`
	MaxImage        int64         `env:"BOBBIN_MODEL_MAX_IMAGE_BYTES" envDefault:"5242880"`

	// Of `bobbin chat`.
	URL string `env:"BOBBIN_URL" envDefault:"http://127.0.0.1:8080"`
	Key string `env:"BOBBIN_KEY" envDefault:"dev"`
}

const (
	maxBuildID   = 200
	minRollOver  = 30             // a workflow's start and a turn take about twenty events
	minContext   = 2000           // tokens; system prompt, tools and a summary take some hundred each
	minRetention = 24 * time.Hour // what a running turn has written so far is read from its events; a client that was off for a day may repeat what it sent
)

// readConfig reads the environment for a command. Its error lists everything that is wrong.
func readConfig(name string) (config, error) {
	cfg, err := env.ParseAs[config]()
	wrong := unreadable(err)
	for _, w := range cfg.check(name) {
		if variable, _, _ := strings.Cut(w, ":"); !slices.ContainsFunc(wrong, about(variable)) {
			wrong = append(wrong, w)
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return cfg, errors.New("the configuration is wrong:\n  " + strings.Join(wrong, "\n  "))
	}
	return cfg, nil
}

func about(variable string) func(string) bool {
	return func(wrong string) bool { return strings.HasPrefix(wrong, variable+":") }
}

// unreadable says of each variable that env could not read what is wanted. It repeats no value: it may be a secret that
// stands in the wrong place.
func unreadable(err error) []string {
	var wrong []string
	var all env.AggregateError
	if err != nil && !errors.As(err, &all) {
		return []string{err.Error()}
	}
	for _, e := range all.Errors {
		var p env.ParseError
		if !errors.As(e, &p) {
			wrong = append(wrong, e.Error())
			continue
		}
		variable, want := p.Name, "a value of type "+p.Type.String()
		if f, ok := reflect.TypeFor[config]().FieldByName(p.Name); ok {
			variable = f.Tag.Get("env")
		}
		switch p.Type {
		case reflect.TypeFor[time.Duration]():
			want = "a duration such as 90s, 5m or 1h30m"
		case reflect.TypeFor[bool]():
			want = "true or false"
		case reflect.TypeFor[int](), reflect.TypeFor[int64]():
			want = "a whole number"
		case reflect.TypeFor[float64]():
			want = "a number such as 0.75"
		case reflect.TypeFor[slog.Level]():
			want = "DEBUG, INFO, WARN or ERROR"
		}
		wrong = append(wrong, variable+": want "+want)
	}
	return wrong
}

// check says what is wrong with the values, a line for each variable.
func (c config) check(name string) (wrong []string) {
	rule := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	_, port, err := net.SplitHostPort(c.Addr)
	rule(err == nil && port != "", "BOBBIN_ADDR: want host:port, got %q", c.Addr)
	if c.WorkerAddr != "" {
		_, port, err := net.SplitHostPort(c.WorkerAddr)
		rule(err == nil && port != "", "BOBBIN_WORKER_ADDR: want host:port, or nothing, got %q", c.WorkerAddr)
	}
	rule(c.TraceProtocol == "grpc" || c.TraceProtocol == "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL: want grpc or http/protobuf, got %q", c.TraceProtocol)
	if c.TraceEndpoint != "" {
		u, err := url.Parse(c.TraceEndpoint)
		rule(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", "OTEL_EXPORTER_OTLP_ENDPOINT: want an http or https address")
	}
	rule(slices.Contains([]string{"off", "auto", "manual"}, c.Versioning), "BOBBIN_WORKER_VERSIONING: want off, auto or manual, got %q", c.Versioning)
	rule(len(c.BuildID) <= maxBuildID, "BOBBIN_BUILD_ID: want at most %d characters, got %d", maxBuildID, len(c.BuildID))
	rule(c.DrainDelay >= 0, "BOBBIN_DRAIN_DELAY: want 0s or more, got %v", c.DrainDelay)
	for field, n := range map[string]int{
		"BOBBIN_TURN_MAX_ROUNDS": c.TurnRounds, "BOBBIN_TURN_MAX_TOOL_CALLS": c.TurnToolCalls, "BOBBIN_MAX_ATTACHMENTS": c.MaxAttachments, "BOBBIN_MAX_TEXT": c.MaxText,
		"BOBBIN_STINT_MAX_ROUNDS": c.StintRounds, "BOBBIN_WORKER_STINTS": c.Stints, "BOBBIN_DATABASE_CONNECTIONS": c.MaxConns,
	} {
		rule(n > 0, "%s: want at least 1, got %d", field, n)
	}
	rule(c.Tools > 0, "BOBBIN_WORKER_TOOLS: want at least 1, got %d", c.Tools)
	rule(c.Tasks > 1, "BOBBIN_WORKER_WORKFLOW_TASKS: want at least 2, got %d", c.Tasks)
	rule(c.StintWait >= 0, "BOBBIN_STINT_MAX_WAIT: want 0s, for none, or more, got %v", c.StintWait)
	for field, d := range map[string]time.Duration{
		"BOBBIN_TURN_MAX_DURATION": c.TurnDuration, "BOBBIN_WRAP_UP_DURATION": c.WrapUp, "BOBBIN_TAKE_TIMEOUT": c.TakeTimeout,
		"BOBBIN_STINT_MAX_DURATION": c.StintDuration, "BOBBIN_DRAIN_TIMEOUT": c.DrainTimeout, "BOBBIN_THREAD_IDLE": c.ThreadIdle,
		"BOBBIN_HEARTBEAT_TIMEOUT": c.Heartbeat, "BOBBIN_MODEL_FIRST_BYTE_TIMEOUT": c.ModelFirstByte,
		"BOBBIN_MODEL_IDLE_TIMEOUT": c.ModelIdle, "BOBBIN_MODEL_TIMEOUT": c.ModelTimeout,
	} {
		rule(d > 0, "%s: want more than 0s, got %v", field, d)
	}
	rule(c.Rate >= 0 && c.Rate <= 1e6, "BOBBIN_RATE_LIMIT: want 0, for no limit, to 1000000, got %v", c.Rate)
	rule(c.Burst > 0, "BOBBIN_RATE_BURST: want at least 1, got %d", c.Burst)
	rule(c.AuthFailures >= 0, "BOBBIN_AUTH_FAILURE_LIMIT: want 0, for no limit, or more, got %d", c.AuthFailures)
	for _, p := range c.TrustedProxies {
		_, prefixErr := netip.ParsePrefix(p)
		_, addrErr := netip.ParseAddr(p)
		rule(prefixErr == nil || addrErr == nil, "BOBBIN_TRUSTED_PROXIES: want addresses or networks such as 10.0.0.0/8, with commas, got %q", p)
	}
	wrong = append(wrong, c.checkFiles()...)
	rule(c.RollOver >= minRollOver, "BOBBIN_HISTORY_ROLL_OVER: want at least %d, got %d", minRollOver, c.RollOver)
	rule(c.EventRetention >= minRetention, "BOBBIN_EVENT_RETENTION: want at least %v, got %v", minRetention, c.EventRetention)
	rule(c.KeyRetention >= minRetention, "BOBBIN_KEY_RETENTION: want at least %v, got %v", minRetention, c.KeyRetention)
	rule(c.MaxOutputTokens >= 0, "BOBBIN_MODEL_MAX_OUTPUT_TOKENS: want 0, for the provider's limit, or more, got %d", c.MaxOutputTokens)
	rule(c.ModelContext >= minContext, "BOBBIN_MODEL_CONTEXT_TOKENS: want at least %d, got %d", minContext, c.ModelContext)
	rule(c.CompactAt > 0 && c.CompactAt <= 0.95, "BOBBIN_COMPACT_AT: want more than 0 and at most 0.95, got %v", c.CompactAt)
	rule(c.CompactKeep >= 0 && c.CompactKeep <= c.CompactAt/2, "BOBBIN_COMPACT_KEEP: want at least 0 and at most half of BOBBIN_COMPACT_AT, got %v", c.CompactKeep)
	rule(c.ReserveWait >= 0, "BOBBIN_RESERVE_WAIT: want 0s, for no wait, or more, got %v", c.ReserveWait)
	rule(c.LeastOut > 0, "BOBBIN_RESERVE_LEAST_OUTPUT_TOKENS: want at least 1, got %d", c.LeastOut)
	rule(c.ReservedOut >= c.LeastOut, "BOBBIN_RESERVE_OUTPUT_TOKENS: want at least BOBBIN_RESERVE_LEAST_OUTPUT_TOKENS, %d, got %d", c.LeastOut, c.ReservedOut)
	rule(c.TurnTokens >= 0, "BOBBIN_TURN_MAX_TOKENS: want 0, for no limit, or more, got %d", c.TurnTokens)
	for field, amount := range map[string]string{"BOBBIN_MONTHLY_LIMIT_USD": c.MonthlyLimit, "BOBBIN_TURN_MAX_COST_USD": c.TurnCost} {
		_, err := dollars(amount)
		rule(err == nil, "%s: %v, got %q", field, err, amount)
	}
	rule(c.TemporalUIPort >= 0 && c.TemporalUIPort < 1<<16, "BOBBIN_TEMPORAL_UI_PORT: want 0 to 65535, got %d", c.TemporalUIPort)
	if name == "api" || name == "worker" || name == "migrate" || name == "key" || name == "owner" {
		rule(c.DatabaseURL != "", "DATABASE_URL: want the address of a Postgres database")
	}
	if name == "api" || name == "worker" || name == "migrate" || name == "deploy" {
		rule(c.TemporalAddress != "", "TEMPORAL_ADDRESS: want host:port of a Temporal frontend")
	}
	if c.TemporalAddress != "" {
		_, _, err := net.SplitHostPort(c.TemporalAddress)
		rule(err == nil && !strings.Contains(c.TemporalAddress, "/"), "TEMPORAL_ADDRESS: want host:port, got %q", c.TemporalAddress)
	}
	if name == "worker" {
		rule(c.OpenAIKey != "" || c.OpenAIURL != "", "OPENAI_API_KEY: want a key, or OPENAI_BASE_URL of a server that needs none")
	}
	if c.OpenAIURL != "" {
		u, err := url.Parse(c.OpenAIURL)
		rule(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", "OPENAI_BASE_URL: want an http or https address")
	}
	return wrong
}

// dollars reads an amount; nil: none is given.
func dollars(s string) (*thread.USD, error) {
	if s == "" {
		return nil, nil
	}
	amount, err := thread.ParseUSD(s)
	return &amount, err
}

func (c config) checkFiles() (wrong []string) {
	rule := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	if c.FilesBucket != "" {
		rule(c.FilesAccessKey != "", "BOBBIN_FILES_ACCESS_KEY: want the bucket's access key")
		rule(c.FilesSecretKey != "", "BOBBIN_FILES_SECRET_KEY: want the bucket's secret key")
		rule(c.FilesDir == "", "BOBBIN_FILES_DIR: want either a folder or BOBBIN_FILES_BUCKET, not both")
	}
	if c.FilesEndpoint != "" {
		u, err := url.Parse(c.FilesEndpoint)
		rule(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", "BOBBIN_FILES_ENDPOINT: want an http or https address")
		rule(c.FilesBucket != "", "BOBBIN_FILES_BUCKET: want the name of a bucket, as BOBBIN_FILES_ENDPOINT is set")
	}
	rule(c.MaxFile > 0 && c.MaxFile <= maxFile, "BOBBIN_MAX_FILE_BYTES: want 1 to %d, got %d", int64(maxFile), c.MaxFile)
	rule(c.FileText > 0, "BOBBIN_FILE_MAX_TEXT: want at least 1, got %d", c.FileText)
	rule(c.MaxImages >= 0, "BOBBIN_MODEL_MAX_IMAGES: want 0, for none, or more, got %d", c.MaxImages)
	rule(c.MaxImage > 0, "BOBBIN_MODEL_MAX_IMAGE_BYTES: want at least 1, got %d", c.MaxImage)
	rule(c.Vision == "auto" || c.Vision == "true" || c.Vision == "false", "BOBBIN_MODEL_VISION: want auto, true or false, got %q", c.Vision)
	rule(!slices.ContainsFunc(c.FileTypes, func(t string) bool { return !mediaType.MatchString(t) }), "BOBBIN_FILE_TYPES: want media types such as image/png or text/*, with commas between")
	for field, d := range map[string]time.Duration{
		"BOBBIN_FILE_TRANSFER_TIMEOUT": c.TransferTimeout, "BOBBIN_FILE_READ_TIMEOUT": c.FileReading, "BOBBIN_FILE_FETCH_TIMEOUT": c.FilePatience,
	} {
		rule(d > 0, "%s: want more than 0s, got %v", field, d)
	}
	return wrong
}

// maxFile: what a worker reads of a file it reads whole.
const maxFile = 1 << 30

var mediaType = regexp.MustCompile(`^[a-z]+/([a-z0-9.+-]+|\*)$`)

func (c config) store() store.Config {
	limit, _ := dollars(c.MonthlyLimit) // checked
	return store.Config{
		DSN: c.DatabaseURL, MaxConns: c.MaxConns, TakeTimeout: c.TakeTimeout, MaxAttachments: c.MaxAttachments, MaxText: c.MaxText,
		EventRetention: c.EventRetention, KeyRetention: c.KeyRetention, MonthlyLimit: limit,
	}
}

// deployment says how Temporal is to tell this build's workers from those of others.
func (c config) deployment() worker.Deployment {
	d := worker.Deployment{On: c.Versioning != "off", Promote: c.Versioning == "auto", BuildID: c.BuildID}
	if d.BuildID == "" {
		d.BuildID = version
	}
	return d
}

// worker makes the worker's configuration. extra are tools beside the built-in ones and those of the tools file.
func (c config) worker(extra ...tools.Tool) (worker.Config, error) {
	prices := llm.DefaultPrices()
	if c.PricesFile != "" {
		var err error
		if prices, err = llm.LoadPrices(c.PricesFile); err != nil {
			return worker.Config{}, fmt.Errorf("BOBBIN_PRICES_FILE: %w", err)
		}
	}
	model, err := llm.New(llm.Config{
		BaseURL: c.OpenAIURL, APIKey: c.OpenAIKey, Model: c.Model, MaxOutputTokens: c.MaxOutputTokens,
		Prices: prices, ReservedOutputTokens: c.ReservedOut, LeastOutputTokens: c.LeastOut, ContextTokens: c.ModelContext,
		FirstByteTimeout: c.ModelFirstByte, IdleTimeout: c.ModelIdle, CallTimeout: c.ModelTimeout,
	})
	if err != nil {
		return worker.Config{}, err
	}
	list := append([]tools.Tool{tools.FetchURL(tools.FetchOptions{})}, extra...)
	if c.ToolsFile != "" {
		own, err := tools.LoadFile(c.ToolsFile, os.LookupEnv)
		if err != nil {
			return worker.Config{}, fmt.Errorf("BOBBIN_TOOLS_FILE: %w", err)
		}
		list = append(list, own...)
	}
	registry, err := tools.New(list...)
	if err != nil {
		return worker.Config{}, err
	}
	limits := agent.DefaultLimits
	limits.Rounds, limits.Duration, limits.ToolCalls, limits.WrapUp = c.TurnRounds, c.TurnDuration, c.TurnToolCalls, c.WrapUp
	limits.LongWait = c.StintWait
	limits.Tokens = c.TurnTokens
	if cost, _ := dollars(c.TurnCost); cost != nil { // checked
		limits.Cost = *cost
	}
	reserveWait := c.ReserveWait
	if reserveWait == 0 {
		reserveWait = -1
	}
	return worker.Config{
		Namespace: c.TemporalNamespace, MaxStints: c.Stints, MaxTools: c.Tools, MaxTasks: c.Tasks, DrainTimeout: c.DrainTimeout, Deployment: c.deployment(),
		Activities: activities.Config{
			Model: model, Tools: registry, Limits: limits, Window: agent.Window{Tokens: c.ModelContext, At: c.CompactAt, Keep: c.CompactKeep}, StintRounds: c.StintRounds, StintDuration: c.StintDuration,
			ReserveWait: reserveWait,
			Reader:      files.Reader{MaxText: c.FileText, Timeout: c.FileReading}, FilePatience: c.FilePatience,
			Pictures: activities.Pictures{Shown: c.sees(), Most: c.MaxImages, Bytes: c.MaxImage},
			Settings: contract.Settings{Idle: c.ThreadIdle, RollOver: c.RollOver, Heartbeat: c.Heartbeat},
		},
	}, nil
}
