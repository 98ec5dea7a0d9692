# Needs Python 3.11 or later, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test test-all test-page lint docs bench campaign clean

demo: $(STAMP)  ## complete the built-in example and write demo.png
	$(BIN)/deepbasis demo

# Each worker takes neighbours, which share what is made once for a file, and then what is left.
# Compiled files are kept for the next run.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n 2 --dist worksteal

test: $(STAMP)  ## the tests that take seconds
	$(PYTEST) -m "not slow"

# With types and shapes of all arguments checked, which costs half as much again.
test-all: $(STAMP)  ## all tests
	$(PYTEST) --hypothesis-profile thorough --jaxtyping-packages=deepbasis,deepbasis_paper,checker.checked

test-page: $(STAMP)  ## the page, in a real browser; installs Debian's Chromium if there is none
	command -v chromium > /dev/null || { apt-get update -q && apt-get install -yq --no-install-recommends chromium; }
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -rs tests/page

lint: $(STAMP)  ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation as a website, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)  ## speed and memory, as ratios measured side by side
	PYTHONPATH=tests $(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/scaffold.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/metrics.py
	PYTHONPATH=tests $(BIN)/python benchmarks/correlated.py
	PYTHONPATH=tests $(BIN)/python benchmarks/complete.py
	$(BIN)/python benchmarks/train.py

campaign: $(STAMP)  ## reliability in figures, for docs/reliability.md: about 30 minutes on two cores
	$(BIN)/python benchmarks/campaign.py --out docs/reliability --scale 1

clean:
	rm -rf $(VENV)

$(STAMP): pyproject.toml models/pyproject.toml paper/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing packages into $(VENV), which takes a few minutes"
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]" -e models -e paper
	touch $@
