# `make demo` runs the main job, `make test` the tests; both first set up .venv where it is missing or out of date.
# Three test processes on two cores: those that start a real federation mostly wait.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp

demo: $(STAMP)
	$(BIN)/fedglean demo

test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadgroup

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

# The reference pages, from the code.
docs: $(STAMP)
	$(BIN)/python docs/make_reference.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,deploy,export,ray]'
	touch $(STAMP)

clean:
	rm -rf .venv build src/*.egg-info

.PHONY: demo test lint docs clean
