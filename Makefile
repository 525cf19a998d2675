# `make demo` runs the main job, `make test` the tests; each first sets up .venv where it is missing or out of date.
# Three test processes on two cores: those that start a real federation mostly wait.
PYTHON ?= python3
EXTRAS ?= dev,deploy,docs,export,ray
BIN := .venv/bin
STAMP := .venv/.stamp
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
BIOME := @biomejs/biome@2.6.8
# The tests that take seconds, not minutes, and need no extra.
QUICK := admit aggregate augment auto batches device folders imports labels layout losses models norm picture \
	public randomness repository schema sgd sources stack tree

demo: $(STAMP)
	$(BIN)/fedglean demo

test: $(STAMP) lint
	$(PYTEST) -n 3 --dist loadgroup

quick: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(PYTEST) -n 2 $(QUICK:%=tests/test_%.py)

# Also what is too long for every day: tests marked `long`, the bare wheel and the site.
full: $(STAMP) lint site
	$(PYTEST) -n 3 --dist loadgroup -m ""
	.ci/bare-wheel

coverage: $(STAMP)
	$(PYTEST) -n 3 --dist loadgroup --cov --cov-report=term:skip-covered

lint: $(STAMP) lint-page
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

# Where node is, and always in the workflow. A function of one script may be used by the other, and forEach may
# return something.
lint-page:
	@if npx --yes $(BIOME) --version > /dev/null 2>&1; then npx --yes $(BIOME) lint --error-on-warnings \
		--skip=noUnusedVariables --skip=noRedundantUseStrict --skip=useIterableCallbackReturn \
		src/fedglean/report/static/*.js; \
	else echo "npx cannot get $(BIOME): the page's JavaScript is not looked at" >&2; \
		test -z "$$GITHUB_ACTIONS"; fi

# The reference pages, from the code; and all pages as a site in build/site, which needs no network.
docs: reference site

reference: $(STAMP)
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_leaderboard.py

site: $(STAMP)
	$(BIN)/zensical build --clean --strict

# Lines, lengths and densities of the code, room by room.
compass: $(STAMP)
	$(BIN)/python tests/measure_code.py

pins: $(STAMP)
	mkdir -p build
	{ grep '^#' constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > build/pins
	mv build/pins constraints.txt

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $(STAMP)

clean:
	rm -rf .venv build src/*.egg-info

.PHONY: demo test quick full coverage lint lint-page docs reference site compass pins clean
