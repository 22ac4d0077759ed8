# Everything here needs Python 3.11+ with venv and pip, nothing else; the first command sets the rest up in .venv.
PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
RUNTIME := .venv/.runtime
READY := .venv/.ready
CODE := src tests benchmarks examples tools
# Slow tests run in CI; here only when asked for: make test SLOW=1
SLOW ?= $(CI)
TESTS ?= tests
# Failed tests are run again, one at a time: some are too slow on a busy machine
AGAIN ?= $(CI)
PYTEST = $(BIN)/python -m pytest -q $(if $(SLOW),,-m "not slow")
# Without bytecode, each of the hundreds of processes that tests start compiles bough and the tests again
unexport PYTHONDONTWRITEBYTECODE
# What the tests need beside the development tools
EXTRAS := --extra a2a --extra acp --extra agui --extra docker --extra evals --extra postgres --extra server

# The Python of the image's base
IMAGE_PYTHON ?= 3.13
IMAGE_EXTRAS := --extra otel --extra postgres --extra server
WHEELS ?= wheels
PICTURES_OF_DOCS = run-80 tree-80 chat-streaming-80 chat-approval-80 chat-paste-80
WEB_PICTURES_OF_DOCS = conversations-1280-light timeline-1280-dark fork-1280-light tree-1280-light compare-1280-light review-390-light

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench docs site pictures release-check format requirements wheels

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(READY) ## install bough and its tools into .venv

$(RUNTIME): Makefile pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "bough needs Python 3.11 or newer; say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making .venv"; $(PYTHON) -m venv .venv; } || \
	  { rm -rf .venv; echo "bough needs Python with venv and pip (Debian: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/uv --version 2>/dev/null | grep -q '^uv $(UV_VERSION)' || { \
	  { $(BIN)/python -m pip --version || $(BIN)/python -m ensurepip; } >/dev/null 2>&1 || \
	  { echo ".venv has no pip and cannot get one: remove it, and make anew" >&2; exit 1; }; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)'; }
	@echo "Installing bough and what it runs on into .venv (once)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --build-constraints requirements-dev.txt -e .
	@touch $@

$(READY): $(RUNTIME) requirements-dev.txt
	@echo "Adding the development tools to .venv (once)"
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements-dev.txt
	@touch $@

demo: $(RUNTIME) ## run bough on the example workspace, offline
	@rm -rf .demo
	@$(BIN)/bough demo .demo

test: $(READY) ## run the tests (SLOW=1: the slow ones too, TESTS=tests/cli: only those)
	@$(PYTEST) -n auto --dist worksteal $(TESTS) || { [ $$? = 1 ] && [ -n "$(AGAIN)" ] && \
	  echo "Running the failed tests again, one at a time (a test that passes only now is flaky: fix it)" && \
	  $(PYTEST) -n 0 --last-failed --last-failed-no-failures none $(TESTS); }

check: $(READY) ## lint, floors, types, habits
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python -m pytest -q -p no:cacheprovider -k "not exception" tests/test_style.py

format: $(READY) ## bring the code into shape
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(READY) ## measure, each figure against its floor (NAME=fork: only that one, PAGE=FILE: into its table)
	@$(BIN)/python benchmarks $(NAME) $(if $(PAGE),--page $(PAGE))

docs: $(READY) ## run the examples in the documentation and check its links
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow" tests/docs
	$(BIN)/python examples/skills/link-check/scripts/check.py --check README.md AGENTS.md CHANGELOG.md docs

site: $(READY) ## build the documentation site into site/, without a network
	$(BIN)/python -m tools.site site

release-check: $(READY) ## check a release: build, metadata, contents, licences, each Python that is here
	$(BIN)/python -m tools.release

pictures: $(READY) ## pictures of the terminal and the web page into artifacts/pictures, those of the documentation into docs/pictures
	PICTURES=$(CURDIR)/artifacts/pictures $(BIN)/python -m pytest -q tests/cli/pictures tests/web/pictures
	@cp $(addprefix artifacts/pictures/,$(addsuffix .svg,$(PICTURES_OF_DOCS))) docs/pictures
	@for name in $(WEB_PICTURES_OF_DOCS); do cp artifacts/pictures/web/$$name.webp docs/pictures/web-$$name.webp; done

requirements: $(READY) ## pin the dependencies anew (versions only)
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --no-header --no-annotate --quiet --upgrade \
	  -o requirements.txt
	$(BIN)/uv pip compile pyproject.toml $(EXTRAS) --group dev --universal --python-version 3.11 --no-header --no-annotate --quiet \
	  --upgrade -c requirements.txt -o requirements-dev.txt

wheels: $(READY) ## what the image of the server is made of (WHEELS=folder, IMAGE_PYTHON=3.13); docker build takes no package index
	@mkdir -p $(WHEELS)
	@$(BIN)/uv pip compile --quiet --python-version $(IMAGE_PYTHON) $(IMAGE_EXTRAS) -c requirements-dev.txt pyproject.toml \
	  -o $(WHEELS)/requirements.txt
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	  --python-version $(IMAGE_PYTHON) --dest $(WHEELS) -r $(WHEELS)/requirements.txt pip
	@$(BIN)/uv build --quiet --wheel --build-constraints requirements-dev.txt --out-dir $(WHEELS) .
