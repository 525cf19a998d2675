# `make demo` runs the main job, `make test` the tests; both first set up .venv where it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp

demo: $(STAMP)
	$(BIN)/fedglean demo

test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,deploy]'
	touch $(STAMP)

clean:
	rm -rf .venv build src/*.egg-info

.PHONY: demo test lint clean
