# Set-up, demo and tests. `make demo` and `make test` need nothing but Python 3.10+ and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHONUNBUFFERED = 1

.PHONY: help setup demo docs test lint test-full test-gpu test-shuffled test-busy test-matrix chaos audit
.PHONY: benchmarks traces versus mutants clean


help:
	@echo "make demo        set up, train PPO on Quadrotor-v0 for two minutes, evaluate, draw"
	@echo "make docs        set up and build the documentation site in build/site"
	@echo "make test        set up, lint, type-check and run the tests"
	@echo "make test-full   the long tests too"
	@echo "make test-gpu    captured against eager, on a machine with a GPU"
	@echo "make audit       known vulnerabilities of the installed packages; needs the network"
	@echo "make test-shuffled SEED=2   the tests of make test in another order"
	@echo "make test-busy   the same beside busy processes, at a load of 8"
	@echo "make test-matrix quick tests with Python 3.10 to 3.13, oldest and newest torch and Gymnasium"
	@echo "make chaos SECONDS=3600   trainings whose processes are killed, stopped and starved at random"
	@echo "make benchmarks  side by side with other libraries"
	@echo "make traces BASE=COMMIT   train every update rule here and at COMMIT, compare bit for bit"
	@echo "make versus BASE=COMMIT   speed here and at COMMIT, side by side"
	@echo "make mutants     plant mistakes one at a time and see whether a test notices (half an hour)"

setup: $(VENV)/.done

# Python compiles what is imported; pip would compile all 28,000 files, which takes longer than to install them.
$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	$(BIN)/python demo.py

# Material for MkDocs announces MkDocs 2 at every build; the versions are pinned below it.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "$(BIN)/python -m http.server -d build/site 8000   and open http://localhost:8000"

lint: setup
	$(BIN)/ruff format --check whorl tests benchmarks docs/*.py demo.py
	$(BIN)/ruff check whorl tests benchmarks docs/*.py demo.py
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not full and not gpu"

test-full: setup
	$(BIN)/python -m pytest -m "not gpu"

test-gpu:
	$(PYTHON) -m pytest -m gpu -v

audit: setup
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check "pip-audit>=2.7"
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > build/audit/installed.txt
	build/audit/bin/pip-audit -r build/audit/installed.txt --no-deps --disable-pip -f json -o build/audit/report.json; \
	  $(BIN)/python tests/audit_report.py build/audit/report.json

SEED ?= 1
test-shuffled: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not full and not gpu" --shuffle $(SEED)

LOAD ?= 8
test-busy: setup
	$(BIN)/python tests/busy.py $(LOAD) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not full and not gpu"

test-matrix: setup
	$(BIN)/python tests/matrix.py $(ARGS)

SECONDS ?= 3600
chaos: setup
	$(BIN)/python tests/chaos/soak.py --seconds $(SECONDS) --seed $(SEED) $(ARGS)

benchmarks: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[benchmarks]"
	$(BIN)/python benchmarks/peers.py setup
	$(BIN)/python benchmarks/peers.py run --output build/peers.jsonl
	$(BIN)/python benchmarks/peers.py report build/peers.jsonl
	$(BIN)/python benchmarks/updates.py
	$(BIN)/python benchmarks/recurrent.py
	$(BIN)/python benchmarks/prioritized.py
	$(BIN)/python benchmarks/replay_checkpoint.py
	$(BIN)/python benchmarks/fleets.py sleep
	$(BIN)/python benchmarks/fleets.py discard CartPole-v1
	$(BIN)/python benchmarks/fleets.py train PongNoFrameskip-v4
	$(BIN)/python benchmarks/pool.py CartPole-v1
	$(BIN)/python benchmarks/pool.py HalfCheetah-v5
	$(BIN)/python benchmarks/wall_clock.py Quadrotor-v0 --seconds 420 --every 20 --stop 682

traces: setup
	$(BIN)/python benchmarks/traces.py $(BASE) $(ARGS)

versus: setup
	$(BIN)/python benchmarks/versus.py $(BASE) $(ARGS)

mutants: setup
	$(BIN)/python benchmarks/mutants.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
