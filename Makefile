# One command each; every one sets itself up on a machine with Python >= 3.11, git, make and a C++ compiler.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CODE   := gateway loadgen tests bench tools examples setup.py

COMPILED := build/compiled

.PHONY: install demo compiled test test-compiled test-engines test-clients test-dashboard serve check format bench clean

install: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "HexSage needs Python >= 3.11; set PYTHON=python3.11 (or newer)")'
	@command -v c++ >/dev/null || command -v g++ >/dev/null || { echo "HexSage needs a C++ compiler: hnswlib is built from source"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev,examples,otel]'
	@touch $@

demo: $(STAMP)  ## emulated fleet, gateway, sweep, report; FAST=1 for a minute's version
	$(BIN)/python -m tools.demo $(if $(FAST),--fast)

check: $(STAMP)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check $(wildcard $(CODE))
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format $(wildcard $(CODE))
	$(BIN)/ruff check --fix $(wildcard $(CODE))

compiled: $(STAMP)  ## the tree again in build/compiled, its inner loops as machine code, as a wheel has them
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(COMPILED) build/wheel/*.whl
	git ls-files -z -- ':!gateway' ':!loadgen' | xargs -0 cp --parents -t $(COMPILED)

test: check  ## all that CI runs
	$(BIN)/python -m pytest

test-compiled: compiled  ## the same tests of what is compiled, on the machine code
	cd $(COMPILED) && $(CURDIR)/$(BIN)/python -m pytest tests/core tests/sim tests/parity tests/tuner tests/runtime tests/telemetry tests/api tests/backends tests/predictor tests/workers tests/conformance

test-engines: $(STAMP)  ## the gateway before real engines (docs/testing.md); first use installs 2.3 GB; ENGINE=llama: 0.3 GB
	$(BIN)/python -m pytest tests/engines $(if $(ENGINE),--engine $(ENGINE))

test-clients: $(STAMP)  ## litellm as a client (docs/testing.md); first use installs 200 MB
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev,clients]'
	$(BIN)/python -m pytest -p no:unraisableexception tests/e2e/test_litellm.py  # it leaves a loop of its own open

# Chromium is Debian's own; where it cannot be had the tests are skipped, by name.
test-dashboard: $(STAMP)  ## the dashboard in a real browser (docs/testing.md); first use installs Chromium
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -yq --no-install-recommends chromium; } \
		|| echo "no Chromium: the tests that need it will be skipped"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev,browser]'
	mkdir -p demo-report
	DASHBOARD_SCREENSHOTS=demo-report $(BIN)/python -m pytest tests/dashboard

serve: $(STAMP)
	$(BIN)/hexsage serve --config backends.yaml

bench: $(STAMP)  ## the scheduling table, on recorded traces where they are present
	$(BIN)/python -m bench.scheduling

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-report
