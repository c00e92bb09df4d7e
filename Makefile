# Two commands are all the set-up: `make run` and `make test`. The rest is for daily work.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTEST := .venv/bin/python -m pytest
# Two workers a core: most tests of processes, kills and time-outs wait rather than compute.
WORKERS := $(shell cores=$$(nproc); echo $$((cores > 4 ? 8 : 2 * cores)))
FAST_TESTS := tests/unit tests/property tests/tidy
COMPILE := .venv/bin/uv pip compile --quiet --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --python-version 3.11 --extra build

.PHONY: help
help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

.PHONY: run
run: ## start the control plane on this machine (ARGS="…" are passed on)
	@tools/environment.sh .venv-run requirements/runtime.txt
	@exec .venv-run/bin/gpuplane up $(ARGS)

.PHONY: setup
setup: ## make .venv with the product and its development tools
	@tools/environment.sh .venv requirements/dev.txt

.PHONY: check
check: setup ## format, lint, strict types, import contracts, fast tests: under a minute
	@$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target \
		check-lint check-types check-imports check-tests

.PHONY: check-lint check-types check-imports check-tests
check-lint:
	@.venv/bin/ruff format --check --quiet . && .venv/bin/ruff check --quiet .
check-types:
	@.venv/bin/mypy
check-imports:
	@.venv/bin/lint-imports --no-logo
check-tests:
	@TEST_EXAMPLES_PERCENT=25 $(PYTEST) -q -n 2 $(FAST_TESTS)

# The programs of a real Kubernetes are built once a machine, in about 15 minutes on two cores, where
# go is installed; without them the tests that need them are left out by name.
.PHONY: rig-binaries
rig-binaries: setup ## find or build etcd, Kubernetes, KWOK, Kueue and Helm for the rig (once)
	@.venv/bin/python -m rig binaries >/dev/null

.PHONY: rig
rig: setup ## start a real Kubernetes here and print its kubeconfig (ARGS="--workers 1")
	@.venv/bin/python -m rig up $(ARGS)

.PHONY: rig-down
rig-down: setup ## stop it
	@.venv/bin/python -m rig down

# RIG=no builds nothing. MAY_LEAVE_OUT=hardware,soak makes anything else that is left out a failure.
.PHONY: test
test: setup check-lint check-types check-imports ## all that this machine can run; ends with what was left out
	$(if $(filter no,$(RIG)),,@$(MAKE) --no-print-directory rig-binaries || true)
	@$(PYTEST) -q -n $(WORKERS) --dist worksteal $(if $(MAY_LEAVE_OUT),--may-leave-out=$(MAY_LEAVE_OUT)) tests

.PHONY: soak
soak: setup ## the long runs: random kills, many examples (results go to docs/status.md)
	@$(PYTEST) --soak --timeout 0 -s -m soak tests

.PHONY: bench
bench: setup ## every benchmark, printed with machine, median and spread
	@set -e; for file in benchmarks/bench_*.py; do \
		name=$${file#benchmarks/}; .venv/bin/python -m benchmarks.$${name%.py}; done

.PHONY: openapi
openapi: setup ## write the committed OpenAPI file and the pages made from the product
	@.venv/bin/python -m tools.openapi
	@for page in api errors settings; do .venv/bin/python -m tools.make_$${page}_page; done

.PHONY: requirements
requirements: setup ## compile the hashed requirement files from pyproject.toml
	@$(COMPILE) pyproject.toml -o requirements/runtime.txt
	@$(COMPILE) --extra dev pyproject.toml -o requirements/dev.txt

.PHONY: clean
clean: ## remove what make made
	@rm -rf .venv .venv-run build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache src/*.egg-info
