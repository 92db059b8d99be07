# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Some machines forbid Python to store bytecode. Then each process of a test compiles hetcomm anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-changed test-all test-hostile vendor-wheels test-fast test-arm test-rdma test-trainers test-versions torch-suite lint build sanitized sanitize fuzz bench clean

demo: build
	$(BIN)/hetcomm demo

# Tests wait more than they compute. WORKERS=0 runs them one after the other.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 6 ? n + 2 : 8)))

# FOR=csrc/plan: only the tests that can see this folder, or file.
test: lint build
	tests=$$($(if $(FOR),$(BIN)/python tests/running/seeing.py $(FOR))) && \
	  $(BIN)/pytest -n $(WORKERS) --sample $$tests

# The tests that can see what the working tree changes.
test-changed: lint build
	tests=$$($(BIN)/python tests/running/seeing.py) && $(BIN)/pytest -n $(WORKERS) --sample $$tests

# Also the cases that a sample leaves out.
test-all: lint build
	$(BIN)/pytest -n $(WORKERS)

# NVIDIA's headers and libraries of several versions, which tests/vendors needs: 0.8 GB, once.
vendor-wheels: $(READY)
	$(BIN)/python tests/running/vendor_wheels.py

# The tests of devices on emulated runtimes that do all that real ones may do, with 1, 2 and 8
# hardware queues over a number of seeds.
SEEDS ?= 3

test-hostile: build
	$(BIN)/python -P tests/running/hostile.py --seeds $(SEEDS) --workers $(WORKERS)

# Something of every layer, without what is marked slow.
test-fast: build
	$(BIN)/pytest -m "not slow" tests/plan tests/core tests/transport/test_ucx_library.py \
	  tests/faults/test_killed.py::test_the_next_call_names_a_rank_killed_while_idle \
	  tests/torch/test_invalid.py

# RDMA in an emulated machine: downloads its kernel at first use.
test-rdma: build
	HETCOMM_TEST_RDMA=full $(BIN)/pytest tests/rdma

# A build for 64-bit Arm and its tests under qemu: downloads the compiler and Python at first use.
test-arm: build
	$(BIN)/python tests/arm/run_arm.py $(TESTS)

# PyTorch's own distributed tests, on gloo and on hetcomm.
torch-suite: build
	$(BIN)/python tests/torch_suite/compare.py --report docs/torch-suite.md --store

# Trainers in an environment of their own, above this one: some 2 GB, at first use.
TRAINERS := .venv-trainers
TRAINER_PACKAGES := accelerate transformers lightning deepspeed "ray[train]"

$(TRAINERS)/.ready: $(READY)
	test -x $(TRAINERS)/bin/python || $(BIN)/python -c \
	  "import sys, venv; venv.create('$(TRAINERS)', with_pip=True)"
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > $$($(TRAINERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/_hetcomm.pth
	$(TRAINERS)/bin/python -m pip install -q "torch==$$($(BIN)/python -c 'import torch; print(torch.__version__)')" \
	  $(TRAINER_PACKAGES)
	touch $@

test-trainers: build $(TRAINERS)/.ready
	$(TRAINERS)/bin/python -m pytest tests/trainers/test_trainers.py \
	  tests/planning/test_transformers.py

# Other torches, Pythons and compilers; RUN=1 installs what PyTorch's wheels need to be imported, 3 GB each.
test-versions: $(READY)
	$(BIN)/python tests/versions/versions.py $(if $(RUN),--run) $(if $(ROWS),$(ROWS),--report docs/versions.md)

# torch comes first: what depends on it would otherwise pull a build of several GB.
$(READY): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("hetcomm needs Python 3.11 or newer; \
	$(PYTHON) is %d.%d. Name another one, for instance: make PYTHON=python3.12 build" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q "$(TORCH)" numpy
	$(BIN)/pip install -q "setuptools>=77" wheel "cmake>=3.24" ninja "pybind11>=2.13" "libucx-cu13>=1.18"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install -q --no-build-isolation -e ".[test,lint]"
	touch $@

build: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python setup.py -q build_ext --inplace

lint: $(READY)
	$(BIN)/ruff check .
	# Files without an encoding follow the locale.
	$(BIN)/ruff check --preview --select PLW1514 hetcomm
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cc' '*.h' '*.inc' '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror

# The core's tests under sanitizers. Python is not built for them, so their libraries go first.
# Reports of processes that a test starts and ends count as well: they come as files.
# dlopen() of a sanitizer ignores the run path of NVRTC, so the folders of its wheels are named.
comma := ,
SANITIZE ?= address,undefined
SANITIZED := $(CURDIR)/build/$(subst $(comma),-,$(SANITIZE))
LIBRARY_address := libasan.so
LIBRARY_undefined := libubsan.so
LIBRARY_thread := libtsan.so

# Runs a command with the sanitized build.
RUN_SANITIZED = PYTHONPATH=$(SANITIZED)/python \
	  LD_LIBRARY_PATH="$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages/nvidia/*/lib | tr ' ' :)" \
	  LD_PRELOAD="$(foreach one,$(subst $(comma), ,$(SANITIZE)),$$($(CXX) -print-file-name=$(LIBRARY_$(one))))" \
	  ASAN_OPTIONS=detect_leaks=0:$(ASAN) UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  TSAN_OPTIONS=log_path=$(SANITIZED)/report:suppressions=$(CURDIR)/tests/tsan.supp

sanitized: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B $(SANITIZED) -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DHETCOMM_SANITIZE=$(SANITIZE) -DHETCOMM_BUILD_TORCH=OFF \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DHETCOMM_OUTPUT=$(SANITIZED)/python/hetcomm
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(SANITIZED) --parallel 2
	for part in hetcomm/*.py hetcomm/*.pyi hetcomm/*.toml hetcomm/*/; do ln -sfn $(CURDIR)/$$part $(SANITIZED)/python/hetcomm/; done

sanitize: sanitized
	rm -f $(SANITIZED)/report.*
	$(RUN_SANITIZED) $(BIN)/pytest -n $(WORKERS) tests/core $(if $(filter thread,$(SANITIZE)),,tests/plan)
	if cat $(SANITIZED)/report.* 2>/dev/null; then exit 1; fi

# Changed inputs for every parser of outside bytes. C++ parsers run under the sanitizers, and a size
# that a parser would take from its input before checking it is an error.
INPUTS ?= 100000
SEED ?= 1
fuzz: ASAN = max_allocation_size_mb=512:allocator_may_return_null=0
fuzz: sanitized build
	$(RUN_SANITIZED) $(BIN)/python tests/fuzz/fuzz.py --kind native --inputs $(INPUTS) --seed $(SEED)
	$(BIN)/python tests/fuzz/fuzz.py --kind python --inputs $(INPUTS) --seed $(SEED)

bench: build
	$(BIN)/python bench/study.py all

clean:
	rm -rf build $(VENV) hetcomm/*.so *.egg-info demo-result
