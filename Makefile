# Needs Python 3.11 or later, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test test-all lint bench clean

demo: $(STAMP)  ## complete the built-in example and write demo.png
	$(BIN)/deepbasis demo

test: $(STAMP)  ## the tests that take seconds
	$(BIN)/pytest -q -n 2 -m "not slow"

test-all: $(STAMP)  ## all tests
	$(BIN)/pytest -q -n 2

lint: $(STAMP)  ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(STAMP)  ## speed and memory, as ratios measured side by side
	PYTHONPATH=tests $(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/scaffold.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/metrics.py
	PYTHONPATH=tests $(BIN)/python benchmarks/local.py
	PYTHONPATH=tests $(BIN)/python benchmarks/complete.py
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf $(VENV)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@
