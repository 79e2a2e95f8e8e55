# Every job of this repository. Each sets up what it needs on a fresh clone.
#   make demo     the main job on real data: flights through RocketMQ into a table on Spark;
#                 DASHBOARD=1 make demo keeps it up at the end and shows it in a browser
#   make test     every test that needs nothing beyond Python, but the rules of the source: make check
#   make test-long  the tests that take minutes, on real Spark mostly
#   make spark-versions  the core of the Spark tests on Spark 4.0, 4.1 and 4.2, Delta and Iceberg on theirs, and Airflow,
#                 all of which it downloads
#   make test-pythons  the tests that need neither Spark nor Java on each Python 3.11 to 3.14 that is here;
#                 PYTHONS="/path/to/python ..." for those it does not find
#   make check    lint, types, structure
#   make types    pyright's look at every symbol that can be imported: each has a type that needs no guess
#   make interop  the suites against the real Apache RocketMQ (needs Maven)
#   make simulate  SEEDS=50000: RocketMQ in simulation, under faults drawn from each seed
#   make simulate-mutants  plant defects one at a time, and find each of them in simulation (hours)
#   make damage   TRIALS=10000: stores with flipped bits, truncated, zeroed, exchanged, older and deleted files
#   make check-mutants  SAMPLE=100 SEED=1: small defects made by rule in what decides, each run against the tests
#                 nearest to it; AREAS="client broker" some of them, SAMPLE=0 every defect (hours)
#   make docs     the pages as a site, in site/; every link of it checked
#   make bench    the usual measurements, next to their peers (needs Maven): half an hour on two cores;
#                 SUITES="send drain" others, MORE="--scale 0.5" as you like
#   make bench-all  all measurements, Spark too: hours
PYTHON ?= python3
# Images of containers set it, and then every process of the suites compiles all it imports, and every worker rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
# Tests wait as much as they compute: one worker more than there are cores, and two more where they wait for Apache's
# programs. A file stays in one process, so what its tests share is made once.
WORKERS ?= 2
BY_FILE  := --dist loadfile --no-loadscope-reorder
PARALLEL := -n $(shell expr $(WORKERS) + 1) $(BY_FILE)
# What a suite has no test in is not collected for it: that takes longer than many a suite's tests.
LONG     = $(shell grep -rlE "mark\.long\b" tests --include="test_*.py")
# Cases of both faces run against Apache's brokers as well.
APACHE   = $(shell grep -rlE "mark\.interop\b|usefixtures\(\"face\"\)" tests --include="test_*.py")

SEEDS ?= 2000

TRIALS ?= 10000

SAMPLE ?= 100
SEED ?= 1

.PHONY: demo test test-long test-pythons spark-versions check types lint interop simulate simulate-mutants damage check-mutants bench bench-all docs env clean format

env: $(STAMP)

# An environment made at another place, or by a Python that is gone, does not count.
ifeq ($(shell [ -x $(BIN)/python ] && cat $(STAMP) 2>/dev/null),$(CURDIR)/$(VENV))
STALE :=
else
STALE := stale
endif
.PHONY: stale

$(STAMP): pyproject.toml constraints.txt scripts/setup_env.py $(STALE)
	@$(PYTHON) scripts/setup_env.py $(VENV)

demo: $(STAMP)
	@$(BIN)/python -m demo

test: $(STAMP)
	@$(BIN)/python scripts/need_java.py && $(BIN)/python scripts/shared_classes.py
	$(PYTEST) tests --ignore=tests/tidy -m "not interop and not long and not versions" $(PARALLEL) $(MORE)

test-long: $(STAMP)
	@$(BIN)/python scripts/need_java.py && $(BIN)/python scripts/shared_classes.py
	$(PYTEST) $(LONG) -m "long and not interop" $(PARALLEL) --spark-workers 2 $(MORE)

test-pythons:
	@$(PYTHON) scripts/pythons.py $(PYTHONS)

spark-versions: $(STAMP)
	@$(BIN)/python scripts/need_java.py
	$(PYTEST) tests -m versions $(MORE)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) tests/tidy -q $(PARALLEL)

types: $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r tests/typing/requirements.txt -c constraints.txt
	$(BIN)/python -m scripts.public_types

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

interop: $(STAMP)
	@$(BIN)/python scripts/need_java.py && $(BIN)/python scripts/shared_classes.py
	@$(BIN)/python -m tests.kits.apache.rehearsal
	$(PYTEST) $(APACHE) -m interop -n $(shell expr $(WORKERS) + 2) $(BY_FILE) $(MORE)

simulate: $(STAMP)
	$(BIN)/python -m tests.scenarios --seeds $(SEEDS) --processes $(WORKERS) $(MORE)

simulate-mutants: $(STAMP)
	$(BIN)/python -m tests.mutants --processes $(WORKERS) $(MORE)

damage: $(STAMP)
	$(BIN)/python -m tests.recovery.damage --trials $(TRIALS) $(MORE)

check-mutants: $(STAMP)
	$(BIN)/python -m tests.mutation $(AREAS) --sample $(SAMPLE) --seed $(SEED) --processes $(WORKERS) $(MORE)

bench: $(STAMP)
	@$(BIN)/python scripts/need_java.py
	$(BIN)/python -m pip install -q --disable-pip-version-check -r benchmarks/requirements.txt -c constraints.txt
	$(BIN)/python -m benchmarks $(SUITES) $(MORE)

bench-all: SUITES = all
bench-all: bench

docs: $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r docs/requirements.txt -c constraints.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m scripts.check_site

clean:
	rm -rf site $(VENV) .pythons .spark-versions .mutation demo-data dist build .pytest_cache .mypy_cache .ruff_cache
