# `make run` does the main job, `make test` passes the tests; both set up what they need.
.PHONY: help install run test check fmt clean
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 16

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[all]'
	@touch $@

$(VENV)/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.run

install: $(VENV)/.test  ## set up the virtual environment

run: $(VENV)/.run  ## serve on 127.0.0.1:8000 with two shards and two API workers
	@exec $(BIN)/egress serve --shards 2 --workers 2 $(ARGS)

test: $(VENV)/.test  ## everything that must pass
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.test  ## format, lint, types, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell ringbuf egress tests bench *.md

fmt: $(VENV)/.test  ## format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:           ## remove what a build leaves
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
