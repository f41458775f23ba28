# make demo   install into .venv, profile a program with five planted defects, print the findings, write the HTML report,
#             and measure the saving of the same program without the defects
# make test   install into .venv with the test tools, check style, types and layers, run the everyday tests
#
# make test-core, make test-plugins    the two jobs of make test, which run side by side; NAME=numerics is one plug-in
# make test-slow         the tests that take longer: launches in turns, many ranks, compilers, whole corpora
# make fuzz             mutated files of every reader; FUZZ_INPUTS=N of each (2000), failures are kept in fuzz-failures/
# make fuzz-native       the same for the scanners of the native library, built with AddressSanitizer (gcc's libasan)
# make docs              write the generated pages, and the documentation as a site that opens offline (build/site)
# make bench             read large recordings with perfscope and its peers in turn, and perfscope's commands against bare programs, at a
#                        small size (FULL=1: hours); results by machine and version are kept in benchmarks/results, the tables in docs/speed.md
# make accuracy          judge the labelled cases and write docs/accuracy.md; FILTER=PATTERN judges some of them
# make calibration       measured kernels of the corpus beside their modelled ranges, into docs/compile-model.md; FIT=1 fits anew
# make test-oldest-jax   the tests of JAX capture and a profiled workload on the oldest jax that is supported
# make test-gpu          on a machine with an NVIDIA GPU, with the PyTorch and JAX of $(PYTHON) and no network; in less than
#                        eight minutes. REHEARSE=1 takes every step on the CPU
# make test-field        programs of public libraries, callbacks of trainers and ways to start a program, on the oldest and the
#                        newest torch and jax (about 14 GB in .venv/field)
#
# All need Python 3.11 or newer and nothing else. A second run reuses .venv.

PYTHON ?= $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$candidate && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
# Processes of pytest, a file in one of them where it can be, so that fixtures are made once: of the everyday tests many wait for a browser or a child, so there is one more than cores.
WORKERS ?= 2
PLUGIN_WORKERS ?= 1
SLOW_WORKERS ?= 2
# Plug-ins are named: if pytest looks for them, it rewrites the assertions of every module of their packages, perfscope among them.
PYTEST_PLUGINS := --disable-plugin-autoload -p xdist -p _hypothesis_pytestplugin
FUZZ_INPUTS ?= 2000
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
QUIET := --quiet
OLDEST := $(VENV)/oldest-jax
OLDEST_JAX := $(shell sed -n 's/^jax = \["jax>=\([0-9.]*\)"\]$$/\1/p' pyproject.toml)

# One thread a process: the workers share the cores, and two runs of the demo take the same path.
export OMP_NUM_THREADS ?= 1

.PHONY: demo bench test test-core test-plugins test-slow fuzz fuzz-native test-oldest-jax test-field test-gpu accuracy calibration lint style types docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-demo
	@echo 'A training loop with five planted defects (perfscope/workloads/demo.py), profiled:'
	$(BIN)/perfscope run --name demo -m perfscope.workloads.demo
	@echo 'The same training without the defects, in turns with it, without a profiler:'
	$(BIN)/python -m perfscope.workloads.demo --pairs 6

test: style
	$(MAKE) --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) test-core test-plugins

test-core: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PYTEST_PLUGINS) -n $(WORKERS) --dist worksteal --durations=15 -rs -m "not slow" --ignore=tests/plugins

test-plugins: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PYTEST_PLUGINS) -n $(PLUGIN_WORKERS) --dist worksteal --durations=5 -rs -m "not slow" tests/plugins/$(NAME)

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PYTEST_PLUGINS) -n $(SLOW_WORKERS) --dist worksteal --durations=15 -rs -m slow

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz --inputs $(FUZZ_INPUTS)

fuzz-native: $(VENV)/.installed-test
	RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zsanitizer=address -Cpanic=abort -Cdebug-assertions' \
		cargo build --release --manifest-path perfscope/native/Cargo.toml --target $(HOST) --target-dir build/native
	LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/python -m tests.native.fuzz build/native/$(HOST)/release/libperfscope_native.so --inputs $(FUZZ_INPUTS)

lint: style types

style: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

test-oldest-jax: $(OLDEST)/.installed
	$(OLDEST)/bin/python -c "import jax; assert f'{jax.__version__}.'.startswith('$(OLDEST_JAX).'), jax.__version__"
	$(OLDEST)/bin/python -m pytest -n $(SLOW_WORKERS) -m jax --durations=5 -rs tests/jax_capture tests/session tests/ab

# Nothing is installed: the machine's own torch and jax are those that fit its driver.
test-gpu:
	$(PYTHON) -m tests.gpu gpu-results $(if $(REHEARSE),--rehearse)

accuracy: $(VENV)/.installed-test
	$(BIN)/python -m tests.accuracy $(if $(FILTER),--filter '$(FILTER)')

calibration: $(VENV)/.installed-test
	$(BIN)/python -m tools.calibration $(if $(FIT),--fit)

# An environment each; what a library does not support there is skipped with the reason.
FIELD_ENVIRONMENTS := torch-oldest torch-newest jax-oldest jax-newest
FIELD_TORCH := accelerate diffusers ipykernel keras lightning nbconvert peft timm torchvision transformers trl
FIELD_JAX := dm-haiku equinox flax grain ipykernel keras nbconvert optax
FIELD_torch-oldest := torch==2.6.0 torchvision==0.21.0 $(filter-out torchvision,$(FIELD_TORCH))
FIELD_torch-newest := torch $(FIELD_TORCH)
FIELD_jax-oldest := jax==$(OLDEST_JAX).0 jaxlib==$(OLDEST_JAX).0 $(FIELD_JAX)
FIELD_jax-newest := jax $(FIELD_JAX)

.PRECIOUS: $(VENV)/field/%/.installed

test-field: $(addprefix test-field-,$(FIELD_ENVIRONMENTS))

test-field-%: $(VENV)/field/%/.installed
	$(VENV)/field/$*/bin/python -m pytest -rs tests/field $(wildcard tests/plugins/*_trainer)

$(VENV)/field/%/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)/field/$*
	$(VENV)/field/$*/bin/python -m pip install --quiet $(FIELD_$*) 'hypothesis>=6.100' 'pytest>=8.4' --editable .
	@touch $@

bench: $(VENV)/.installed-test
	$(BIN)/python benchmarks/bench.py --results benchmarks/results --markdown docs/speed.md $(if $(FULL),--full)

docs: $(VENV)/.installed-test $(VENV)/.installed-docs
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV) build dist perfscope.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.installed-demo: EXTRAS := torch
$(VENV)/.installed-demo: QUIET :=
$(VENV)/.installed-test: EXTRAS := torch,jax,test
$(VENV)/.installed-docs: EXTRAS := docs

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing perfscope and its extras $(EXTRAS) into $(VENV), once: some minutes'
	$(BIN)/python -m pip install $(QUIET) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

$(OLDEST)/.installed: pyproject.toml
	@test -n '$(OLDEST_JAX)' || { echo >&2 'make: pyproject.toml does not say which jax is the oldest'; exit 1; }
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet 'jax==$(OLDEST_JAX)' 'hypothesis>=6.100' 'jsonschema>=4.23' 'pytest>=8.4' 'pytest-xdist>=3.6' --editable .
	@touch $@

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo >&2 'make: no Python 3.11 or newer found; install one, or say which: make PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 'make: $(PYTHON) does not start, or is older than 3.11'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 'make: $(PYTHON) cannot create environments; install its venv package (Debian, Ubuntu: apt install python3-venv)'; exit 1; }
	$(PYTHON) -m venv $(VENV)
