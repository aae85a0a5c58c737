# hookscope: every command sets itself up first (.venv), then acts.
PYTHON ?= python3
PY := .venv/bin/python
# In a container people are root; Jupyter wants to be told that this is meant.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)
SETUP := requirements.lock pyproject.toml $(shell find lessons/jupyter -type f)

help:
	@echo "make lab    open the course in JupyterLab"
	@echo "make test   prove everything (make test-all: with every model family of torchvision)"
	@echo "make build  turn changed lessons into notebooks"
	@echo "make bench  measure against other tools (half an hour; writes benchmarks/README.md)"
	@echo "make history  ask every release of torch how its hooks behave (an hour; RELEASES='2.0.0 2.16.0' asks these)"
	@echo "make check  after each edit, within a minute: lint, and the tests of what changed (BASE=HEAD~1: since then)"
	@echo "make lint   ruff, mypy, and the direction of the imports"
	@echo "make house  draw the house into CONTRIBUTING.md"
	@echo "make lock   renew requirements.lock"
	@echo "make .venv  set up only"

lab: .venv/ready
	.venv/bin/jupyter lab --ServerApp.ip=127.0.0.1 $(AS_ROOT) --ServerApp.root_dir=notebooks \
	  --LabApp.default_url=/lab/tree/00_start_here.ipynb

# Two processes. loadfile: the cells of a notebook share a kernel. In their order: the browser tests, which take longest,
# would come last otherwise, and one process would wait.
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: .venv/ready
	$(PYTEST)

test-all: .venv/ready
	$(PYTEST) -m "slow or not slow"

build: .venv/ready
	$(PY) -m lessons.build

# In an environment of its own: the course does not need the peers.
bench: .venv-bench/ready
	.venv-bench/bin/python -W ignore -m benchmarks

.venv-bench/ready: .venv/ready
	.venv/bin/uv venv --quiet --allow-existing --python $(PY) .venv-bench
	.venv/bin/uv pip install --quiet --python .venv-bench/bin/python -r requirements.lock -e . --group bench
	@touch $@

# Writes helpers/hookscope_course/history/records.json. Old releases need Python 3.7 and 3.9: uv finds them, or fetches them if it may.
history: .venv/ready
	$(PY) -m hookscope_course.history.make $(RELEASES)

lint: .venv/ready
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy && .venv/bin/lint-imports --no-logo

check: .venv/ready
	@$(PY) -m tools.check $(if $(BASE),--base $(BASE))

house: .venv/ready
	$(PY) -m tools.house

# Without the CUDA packages: torch pins those itself, and a CPU build of torch must not drag them in.
lock: .venv/ready
	.venv/bin/uv pip compile pyproject.toml --group dev --universal --upgrade --no-header --no-annotate --quiet \
	  | grep -vE '^(nvidia-|cuda-|triton==)' > requirements.lock.new && mv requirements.lock.new requirements.lock

.venv: .venv/ready

.venv/ready: $(SETUP)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("hookscope needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 lab")'
	@test -x .venv/bin/uv || { echo "Setting up .venv"; $(PYTHON) -m venv .venv && $(PY) -m pip install --disable-pip-version-check --quiet "uv>=0.9"; }
	.venv/bin/uv pip install --python $(PY) -r requirements.lock -e .
	mkdir -p .venv/etc/jupyter && cp -R lessons/jupyter/. .venv/etc/jupyter/
	@touch $@

.PHONY: help lab test test-all build bench history lint check house lock .venv
