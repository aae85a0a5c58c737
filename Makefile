# hookscope: every command sets itself up first (.venv), then acts.
PYTHON ?= python3
PY := .venv/bin/python
# Where the learner's copy is, or shall be.
COURSE ?= course
# In a container people are root; Jupyter wants to be told that this is meant.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)
# Where HOME cannot be written, Jupyter, uv and matplotlib keep their files here.
ifneq ($(shell [ -w "$$HOME" ] && echo writable),writable)
export HOME := $(CURDIR)/build/home
$(shell mkdir -p build/home)
endif

help:
	@echo "make lab    open your own copy of the course in JupyterLab (make course: only make it, or bring it up to date)"
	@echo "make reset CHAPTER=03  begin a chapter again; what you wrote is kept as a dated copy"
	@echo "make progress  which exercises are done, and what is next"
	@echo "make nbgrader CHAPTERS='02 04' DEST=folder  exercises as nbgrader assignments (make grade DEST=folder: the grades)"
	@echo "make test   prove everything (make test-all: with every model family of torchvision)"
	@echo "make build  turn changed lessons into notebooks"
	@echo "make bench  measure against other tools (half an hour; writes benchmarks/README.md)"
	@echo "make history  ask every release of torch how its hooks behave (an hour; RELEASES='2.0.0 2.16.0' asks these)"
	@echo "make check  after each edit, within a minute: lint, and the tests of what changed (BASE=HEAD~1: since then)"
	@echo "make lint   ruff, mypy, and the direction of the imports"
	@echo "make house  draw the house into CONTRIBUTING.md"
	@echo "make lock   renew requirements.lock and requirements-dev.lock"
	@echo "make .venv  only set up what the course needs (make dev: and what contributors need)"

# Each does nothing, in a quarter of a second, if there is nothing to do.
.venv:
	@$(PYTHON) set_up.py

dev:
	@$(PYTHON) set_up.py dev

lab: course
	.venv/bin/jupyter lab --ServerApp.ip=127.0.0.1 $(AS_ROOT) --ServerApp.root_dir="$(COURSE)" \
	  --LabApp.default_url=/lab/tree/00_start_here.ipynb

# The learner's own copy. It is never overwritten: what was changed stays, and the new version is laid beside it.
course: .venv
	@$(PY) -m hookscope_course.learner --to "$(COURSE)"

reset: .venv
	@$(PY) -m hookscope_course.learner --to "$(COURSE)" reset $(CHAPTER)

progress: .venv
	@$(PY) -m hookscope_course.learner --to "$(COURSE)" progress

# Exercises as nbgrader assignments; and the grades of what was put into DEST/submitted.
nbgrader: dev
	@$(PY) -m hookscope_course.classroom.grading write $(CHAPTERS) --to "$(DEST)"

grade: dev
	@$(PY) -m hookscope_course.classroom.grading grade "$(DEST)" $(if $(UNCONFINED),--unconfined)

# Two processes. loadfile: the cells of a notebook share a kernel. In their order: the browser tests, which take longest,
# would come last otherwise, and one process would wait.
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: dev
	$(PYTEST)

test-all: dev
	$(PYTEST) -m "slow or not slow"

build: dev
	$(PY) -m lessons.build

# In an environment of its own: the course does not need the peers.
bench:
	@$(PYTHON) set_up.py bench
	.venv-bench/bin/python -W ignore -m benchmarks

# Writes its records.json. Old releases need Python 3.7 and 3.9: uv finds them, or fetches them if it may.
history: dev
	$(PY) -m hookscope_course.history.make $(RELEASES)

lint: dev
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy && .venv/bin/lint-imports --no-logo \
	  && .venv/bin/codespell

check: dev
	@$(PY) -m tools.check $(if $(BASE),--base $(BASE))

house: dev
	$(PY) -m tools.house

# Without the CUDA packages: torch pins those itself, and a CPU build of torch must not drag them in.
# The second file has only what the first has not.
COMPILE := .venv/bin/uv pip compile pyproject.toml --universal --upgrade --no-header --no-annotate --quiet
lock: dev
	$(COMPILE) --group course | grep -vE '^(nvidia-|cuda-|triton==)' > requirements.lock.new
	$(COMPILE) --group dev -c requirements.lock.new | grep -vE '^(nvidia-|cuda-|triton==)' \
	  | grep -vxFf requirements.lock.new > requirements-dev.lock.new
	mv requirements.lock.new requirements.lock && mv requirements-dev.lock.new requirements-dev.lock

.PHONY: help .venv dev course reset progress lab nbgrader grade test test-all build bench history lint check house lock
