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

GO       := go
GOBUILD  := CGO_ENABLED=0 GOFLAGS= GOWORK=off $(GO) build -trimpath -buildvcs=false
comma    := ,
ARCHES   := $(sort $(notdir $(subst $(comma), ,$(PLATFORM))))

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo
	@echo "  make image K8S=1.37 [SUPPLY=auto|official|rebuilt] [PUSH=registry/repository] [OUT=out] [TAG=dev] [PLATFORM=linux/amd64] [ARGS=--dry-run]"

.PHONY: builder
builder: ## build bin/builder
	@$(GOBUILD) -ldflags "-s -w" -o bin/builder ./builder

.PHONY: runtime
runtime: ## build the node runtime for each architecture of PLATFORM and print its size
	@for arch in $(ARCHES); do \
	  GOOS=linux GOARCH=$$arch $(GOBUILD) -ldflags "-s -w -X github.com/kairos-io/provider-kubernetes/runtime/cli.version=$(VERSION)" -o bin/agent-provider-kubernetes-$$arch ./runtime && \
	  stat -c '  %n: %s bytes' bin/agent-provider-kubernetes-$$arch >&2; \
	done

.PHONY: image
image: builder runtime ## make one node image: K8S=1.37
	@bin/builder image --minor "$(K8S)" --supply "$(SUPPLY)" --platform "$(PLATFORM)" --push "$(PUSH)" --out "$(OUT)" --tag "$(TAG)" --version "$(VERSION)" $(ARGS)

.PHONY: matrix
matrix: builder ## print which images are built, from which versions
	@bin/builder matrix

.PHONY: lock
lock: builder ## resolve the inputs of one minor again and show what changed: K8S=1.37
	@bin/builder lock --minor "$(K8S)" --platform "$(PLATFORM)" $(ARGS)

.PHONY: inspect
inspect: builder ## prove that an image keeps its promises: IMAGE=out/k8s-1.37
	@bin/builder inspect "$(IMAGE)" $(ARGS)

.PHONY: verify
verify: builder ## verify an image's signature: IMAGE=out/k8s-1.37
	@bin/builder verify "$(IMAGE)" $(ARGS)

.PHONY: clean
clean: ## remove what was built here; caches and keys stay
	rm -rf bin out
