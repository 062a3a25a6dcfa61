# The builder does the work; these targets only call it. `make` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

K8S      ?=
SUPPLY   ?= auto
PLATFORM ?= linux/$(shell go env GOARCH)
PUSH     ?=
OUT      ?= out
TAG      ?= dev
VERSION  ?= v0.0.0-dev
ARGS     ?=
FUZZTIME ?= 20s
BENCH    ?= .
BIN      ?= bin

# go.mod says which toolchain; what is built with "go" from PATH gets the same.
export PATH := $(shell go env GOROOT)/bin:$(PATH)
GO       := go
GOENV    := CGO_ENABLED=0 GOFLAGS= GOWORK=off
GOBUILD  := $(GOENV) $(GO) build -trimpath -buildvcs=false
comma    := ,
ARCHES   := $(sort $(notdir $(subst $(comma), ,$(PLATFORM))))

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo
	@echo "  make image K8S=1.37 [SUPPLY=auto|official|rebuilt] [PUSH=registry/repository] [OUT=out] [TAG=dev] [PLATFORM=linux/amd64] [ARGS=--dry-run]"

.PHONY: builder
builder: ## build bin/builder
	@$(GOBUILD) -ldflags "-s -w" -o $(BIN)/builder ./builder

.PHONY: runtime
runtime: ## build the node runtime for each architecture of PLATFORM and print its size
	@for arch in $(ARCHES); do \
	  GOOS=linux GOARCH=$$arch $(GOBUILD) -ldflags "-s -w -X github.com/kairos-io/provider-kubernetes/runtime/cli.version=$(VERSION)" -o $(BIN)/agent-provider-kubernetes-$$arch ./runtime && \
	  stat -c '  %n: %s bytes' $(BIN)/agent-provider-kubernetes-$$arch >&2; \
	done

.PHONY: image
image: builder runtime ## make one node image: K8S=1.37
	@bin/builder image --minor "$(K8S)" --supply "$(SUPPLY)" --platform "$(PLATFORM)" --push "$(PUSH)" --out "$(OUT)" --tag "$(TAG)" --version "$(VERSION)" $(ARGS)

.PHONY: matrix
matrix: builder ## print which images are built, from which versions
	@bin/builder matrix $(ARGS)

.PHONY: lock
lock: builder ## resolve the inputs of one minor again and show what changed: K8S=1.37
	@bin/builder lock --minor "$(K8S)" --platform "$(PLATFORM)" $(ARGS)

.PHONY: inspect
inspect: builder ## prove that an image keeps its promises: IMAGE=out/k8s-1.37
	@bin/builder inspect "$(IMAGE)" $(ARGS)

.PHONY: verify
verify: builder ## verify an image's signature: IMAGE=out/k8s-1.37
	@bin/builder verify "$(IMAGE)" $(ARGS)

.PHONY: lab
lab: ## boot the image in OUT, as root, and open a shell in it; it is made first when it is not there: K8S=1.37
	@[ -e "$(OUT)/k8s-$(K8S)" ] || $(MAKE) --no-print-directory image
	@$(GOBUILD) -ldflags "-s -w" -o $(BIN)/lab ./test/lab/cmd/lab
	@$(BIN)/lab $(ARGS) "$(OUT)/k8s-$(K8S)"

# Tests that make whole images, and boot them. They run one package after the
# other, for two would build Kubernetes twice, and always anew, for go test does
# not see what the programs that they start read.
IMAGETESTS := ./test/e2e ./test/lab ./test/boot ./test/kairos

.PHONY: test
test: builder runtime ## vet, then every test: of packages, of whole images, of booted nodes
	@echo "Vetting, then testing packages, whole images and booted nodes. The first run builds Kubernetes: half an hour on two cores."
	$(GOENV) $(GO) vet ./...
	$(GOENV) $(GO) test -timeout 30m $$($(GO) list ./... | grep -vE '/test/(e2e|lab|boot|kairos)$$')
	$(GOENV) $(GO) test -timeout 3h -p 1 -count 1 -v $(IMAGETESTS)

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME, one after the other
	@for file in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
	  for name in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$file); do \
	    echo "$$name of $$(dirname $$file)"; \
	    $(GOENV) $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) $$(dirname $$file) || exit 1; \
	  done; \
	done

.PHONY: bench
bench: ## run the benchmarks that match BENCH, as root, on the files of IMAGE; building BuildKit takes three minutes the first time
	@$(GOENV) $(GO) build -C test/tools/buildkit -trimpath -o $(CURDIR)/bin/ github.com/moby/buildkit/cmd/buildkitd github.com/moby/buildkit/cmd/buildctl
	IMAGE="$(abspath $(or $(IMAGE),$(OUT)/k8s-1.37))" $(GOENV) $(GO) test -tags bench -run '^$$' -bench '$(BENCH)' -timeout 1h $(ARGS) \
	  $$(grep -rlE '^func Benchmark' --include='*_test.go' . | xargs -n 1 dirname | sort -u)

.PHONY: lint
lint: ## run golangci-lint; building it takes five minutes of one core the first time
	@$(GOENV) $(GO) build -C test/tools/golangci -trimpath -o $(CURDIR)/bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	bin/golangci-lint run

.PHONY: clean
clean: ## remove what was built here; caches and keys stay
	rm -rf bin out
