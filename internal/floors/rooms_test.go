package floors

// A room is a package, or with /... a package and all beneath it, and what it may import of ours. Its own folder's
// package is always allowed, to its external tests. Among rows that fit, the longest decides.
type room struct {
	at    string
	ours  []string // patterns as in at; ... alone is every package
	tests []string // what its tests may import of ours besides
	never []string // what ours would allow, but must not
	pure  bool     // no clock, no network, no files, no SQL outside its tests
	std   bool     // the standard library only, outside its tests
	alone bool     // its tests have no helpers of ours either
}

// An owner is a module, named by the beginning of its import path, and the rooms that may import it. Among rows that
// fit, the longest decides. A module without a row is everyone's.
type owner struct {
	module string
	rooms  []string
	tests  []string // rooms whose tests may import it too
}

// helpers are packages for tests, which any test may import.
var helpers = []string{"store/storetest", "llm/scripted", "channels/channelstest", "embedded/...", "e2e/tally"}

// adapters are floor 4 without its test helpers.
var adapters = []string{
	"store", "files", "llm", "tools", "tools/mcphost", "tools/browser", "tools/sandbox", "tools/search",
	"channels", "channels/telegram", "channels/whatsapp", "channels/twilio", "vault",
}

var (
	tool    = []string{"thread", "tools"}
	channel = []string{"thread", "channels"}
	http    = []string{"contract", "thread", "research", "tracing", "store", "files", "channels", "vault", "web", "api/..."}
)

// house is the import table.
var house = []room{
	// Floor 0: ground.
	{at: "thread", pure: true, std: true, alone: true},
	{at: "tracing"}, // whoever works on a turn makes its spans
	{at: "migrations", tests: []string{"store"}}, // they run as store runs them
	{at: "web"},
	{at: "web/test", ours: []string{"web", "thread"}},

	// Floors 1 to 3: pure code.
	{at: "agent", ours: []string{"thread"}, pure: true},
	{at: "research", ours: []string{"thread", "agent"}, pure: true},
	{at: "contract", ours: []string{"thread"}, pure: true},

	// Floor 4: adapters, one outside system each.
	{at: "store", ours: []string{"thread", "research", "migrations", "tracing"}},
	{at: "store/storetest", ours: []string{"thread", "store", "migrations", "embedded/..."}},
	{at: "files", ours: []string{"thread"}},
	{at: "llm", ours: []string{"thread"}},
	{at: "llm/scripted", ours: []string{"thread"}, tests: []string{"llm"}}, // the client must find it as strict as the provider
	{at: "tools", ours: []string{"thread"}},
	{at: "tools/mcphost", ours: tool},
	{at: "tools/browser", ours: tool},
	{at: "tools/sandbox", ours: tool},
	{at: "tools/search", ours: tool},
	{at: "channels", ours: []string{"thread"}},
	{at: "channels/telegram", ours: channel},
	{at: "channels/whatsapp", ours: channel},
	{at: "channels/twilio", ours: channel},
	{at: "channels/channelstest", ours: channel},
	{at: "vault", ours: []string{"thread"}},

	// Floor 5: the two sides of Temporal. Workflow code is replayed, so it has no clock or network of its own either.
	{at: "activities", ours: append([]string{"contract", "thread", "agent", "research", "tracing"}, adapters...)},
	{at: "workflows", ours: []string{"contract", "thread"}, pure: true},

	{at: "relay", ours: []string{"contract", "thread", "store", "tracing"}},
	{at: "monitor", ours: []string{"thread", "store"}},

	// Floor 6.
	{at: "worker", ours: append([]string{"contract", "thread", "agent", "research", "activities", "workflows"}, adapters...)},
	{at: "api", ours: http},
	{at: "api/openai", ours: http},

	{at: "chat", ours: []string{"thread"}}, // a client: it knows the API over HTTP alone

	// Roof.
	{at: "cmd/bobbin", ours: []string{"..."}, never: []string{"e2e/...", "bench/...", "lab/...", "internal/...", "store/storetest", "channels/channelstest"}},
	{at: "e2e/...", ours: []string{"..."}, never: []string{"bench/...", "cmd/..."}},
	{at: "e2e/tally", std: true}, // any test may count for the laboratory
	{at: "e2e/house", ours: []string{"..."}, never: []string{"e2e/...", "bench/...", "cmd/..."}}, // for the rooms beside it alone
	{at: "bench/...", ours: []string{"..."}, never: []string{"e2e/...", "cmd/..."}},
	{at: "lab", ours: []string{"e2e/tally", "internal/page"}}, // it runs the tests, and what it breaks are files
	{at: "internal/page", std: true},                          // for the commands that measure
	{at: "embedded/...", ours: []string{"embedded/..."}, alone: true},
	{at: "internal/floors", alone: true},
	{at: "internal/deploy", alone: true},                          // likewise: files, and no package
	{at: "internal/docs", tests: []string{"thread"}, alone: true}, // it reads the rest, and imports none of it
}

// temporal are the rooms that speak to Temporal.
var temporal = []string{"activities", "workflows", "relay", "worker", "api/...", "cmd/bobbin", "e2e/...", "bench/...", "embedded/..."}

var owners = []owner{
	{module: "github.com/jackc/pgx", rooms: []string{"store/...", "embedded/...", "bench/...", "e2e/..."}, tests: []string{"migrations"}},
	{module: "github.com/pressly/goose", rooms: []string{"store/..."}, tests: []string{"migrations"}},
	{module: "github.com/aws/aws-sdk-go-v2", rooms: []string{"files"}},
	{module: "github.com/klippa-app/go-pdfium", rooms: []string{"files"}},
	{module: "github.com/sashabaranov/go-openai", rooms: []string{"llm"}},
	{module: "github.com/gin-gonic/gin", rooms: []string{"api/..."}},
	{module: "github.com/gin-contrib", rooms: []string{"api/..."}},
	{module: "github.com/getkin/kin-openapi", tests: []string{"api/..."}}, // the binary serves the document, and reads nothing of it
	{module: "github.com/caarlos0/env", rooms: []string{"cmd/bobbin"}},
	{module: "github.com/modelcontextprotocol/go-sdk", rooms: []string{"tools/mcphost"}},

	{module: "go.temporal.io/api", rooms: temporal},
	{module: "go.temporal.io/sdk", rooms: temporal},
	// The worker registers activities and workflows under their names, with the options of these two packages; tests of
	// workflows register activities in the test environment and replay histories; those of embedded/... run one workflow, and so does what Bobbin is measured against.
	{module: "go.temporal.io/sdk/activity", rooms: []string{"activities", "worker"}, tests: []string{"workflows", "embedded/..."}},
	{module: "go.temporal.io/sdk/workflow", rooms: []string{"workflows", "worker", "bench/floor"}, tests: []string{"embedded/..."}},
	{module: "go.temporal.io/sdk/worker", rooms: []string{"worker", "bench/floor"}, tests: []string{"workflows", "embedded/..."}},
	{module: "go.temporal.io/sdk/client", rooms: []string{"activities", "relay", "worker", "cmd/bobbin", "e2e/...", "bench/...", "embedded/..."}, tests: []string{"workflows"}},
	// Hundreds of modules: devserver has it, a module of its own.
	{module: "go.temporal.io/server"},
}

// impure are the packages of the standard library that a pure room does not import; net/url only reads text.
var (
	impure     = []string{"net/...", "os/...", "database/sql/...", "syscall/..."}
	pureEnough = []string{"net/url"}
)

// clock are the functions of package time that ask the clock or wait for it.
var clock = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}
