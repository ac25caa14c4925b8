# Bobbin. `make` alone lists what there is.
.DEFAULT_GOAL := help
export GOWORK := off
export GOFLAGS += -buildvcs=false

BIN := bin/bobbin
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: dev
dev: build ## run everything: Postgres, Temporal, API, worker; Ctrl-C stops it
	@exec $(BIN) dev

.PHONY: test
test: deps ## run all tests, on a real Postgres and a real Temporal server
	@echo "Building the packages and their tests (a few minutes at first) …"
	@go vet ./...
	@echo "Running the tests …"
	@go test -timeout 20m ./...
	@go test -C devserver -trimpath -timeout 10m . # without -trimpath the whole server is compiled once more

.PHONY: bench
bench: deps ## measure it against bare loops on the same machine, eight minutes; ROWS=accept,stop for some rows
	@go run ./bench -commit '$(VERSION)' $(if $(ROWS),-rows '$(ROWS)',-docs docs/benchmarks.md)

.PHONY: lab
lab: deps ## try to make it lose, double or reorder a message, and break it on purpose, some hours; PARTS=races,mutations for some; MUTATIONS='a take' for those so called
	@go run ./lab -commit '$(VERSION)' $(if $(PARTS)$(MUTATIONS),-v -parts '$(PARTS)' -mutations '$(MUTATIONS)',-docs docs/benchmarks.md -readme README.md)

.PHONY: build
build: ## build bin/bobbin
	@echo "Building $(BIN) (a minute or two at first) …"
	@go build -ldflags '-X main.version=$(VERSION)' -o $(BIN) ./cmd/bobbin

.PHONY: chat
chat: build ## talk to a running server from the terminal
	@exec $(BIN) chat

.PHONY: lint
lint: ## check the format, and the linters of .golangci.yml where golangci-lint is installed
	@test -z "$$(gofmt -l . | grep -v /testdata/)" || { gofmt -l .; exit 1; }
	@if command -v golangci-lint >/dev/null; then golangci-lint run ./...; else echo "golangci-lint is not installed; only the format was checked"; fi

.PHONY: record
record: ## record the workflow histories of this version; RELEASE=v1.2.3 keeps them as a released version's
	@go test ./workflows -count 1 -run TestHistoriesReplay -record
	@if [ -n "$(RELEASE)" ]; then cp -r workflows/testdata/histories/next "workflows/testdata/histories/$(RELEASE)"; fi

.PHONY: clean
clean: ## remove what was built; data in .bobbin stays
	@rm -rf bin

# What tests need beside Go. Both say what they do.
.PHONY: deps
deps:
	@echo "Building what brings PostgreSQL and Temporal (a minute at first) …"
	@go run ./embedded/prepare
