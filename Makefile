# `make run` does the main job, `make test` passes the tests; both set up what they need.
.PHONY: help install run test check fmt build build-py bench bench-smoke bench-setup stress fuzz asan tsan clean
.DEFAULT_GOAL := help
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
ARGS    ?=
SECONDS ?= 60
SEED    ?= 0

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 16

# The C body is part of the install, so its source is one of the things a stale install is older than.
$(VENV)/.run: pyproject.toml $(wildcard ringbuf/_cops*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[all,try]'
	@touch $@

$(VENV)/.test: pyproject.toml $(wildcard ringbuf/_cops*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.run

install: $(VENV)/.test  ## set up the virtual environment for developing

run: $(VENV)/.run  ## serve on 127.0.0.1:8000 with two shards and two API workers (ARGS= adds flags)
	@exec $(BIN)/egress serve --shards 2 --workers 2 $(ARGS)

test: $(VENV)/.test  ## everything that must pass (ARGS= goes to pytest)
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(VENV)/.test  ## format, lint, types, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/api.py
	$(BIN)/codespell ringbuf egress tests bench *.md

fmt: $(VENV)/.test  ## format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

build: $(VENV)/.test  ## prove that the C body loads
	RINGBUF_IMPL=c $(BIN)/python -c 'import ringbuf; print("ringbuf body:", ringbuf.__impl__)'

build-py: $(VENV)/.test  ## prove that the Python body loads
	RINGBUF_IMPL=python $(BIN)/python -c 'import ringbuf; print("ringbuf body:", ringbuf.__impl__)'

bench-setup: $(VENV)/.test  ## install the rivals (each is optional)
	-for rival in $$(grep -v '^#' bench/rivals/requirements.txt); do $(BIN)/pip install --quiet $$rival; done

bench: bench-setup  ## measure everything against its rivals; bench/results/report.html
	$(BIN)/python -m bench.all $(ARGS)

bench-smoke: bench-setup  ## run every benchmark with tiny counts
	$(BIN)/python -m bench.all --smoke

stress: $(VENV)/.test  ## the long runs: kills, corruption, soak, load (SECONDS= each, SEED=)
	$(BIN)/python -m tests.stress --seconds $(SECONDS) --seed $(SEED) $(ARGS)

fuzz: $(VENV)/.test  ## random and mutated input, guided by coverage where atheris is installed (SECONDS= each, SEED=)
	for program in tests/fuzz/fuzz_*.py; do $(BIN)/python $$program --seconds $(SECONDS) --seed $(SEED) || exit 1; done
	$(BIN)/python -m tests.fuzz.guided --seconds $(SECONDS) --seed $(SEED)

asan: $(VENV)/.test  ## the C body's tests under AddressSanitizer (ARGS= goes to pytest)
	$(BIN)/python -m tests.sanitize asan $(ARGS)

tsan: $(VENV)/.test  ## the C body's two halves in two threads under ThreadSanitizer
	$(BIN)/python -m tests.sanitize tsan

clean:           ## remove what a build leaves
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
