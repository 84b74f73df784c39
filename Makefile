# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` need Python 3.11, a C compiler and make; they make everything else in .venv.
# PYTHON=python3.12 chooses the interpreter, V=1 shows what pip says.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip $(if $(V),,--quiet) --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# Four workers, as tests wait half of the time, have a network namespace each; where that cannot be had, all tests
# share one and take turns.  Files come in their order: by number of tests, slow ones that have few would be last.
WORKERS ?= $(shell $(BIN)/python tests/namespaces.py echo --dist loadfile --no-loadscope-reorder -n 4 || \
             echo "so the tests take turns: some 13 minutes instead of 5" >&2)

# Byte code is kept, whatever the environment says: else all processes of the tests compile what they import.
export PYTHONDONTWRITEBYTECODE :=

# What is tested over the wire, and by shared memory once more.
LOCAL     := $(addprefix tests/,conn transport)
LOCAL_ALL := $(LOCAL) $(addprefix tests/,lifetime rdmacm cli lab3 patterns)
# And over iWARP: a sample, and all of it.
IWARP     := $(patsubst %,tests/transport/test_%.py,gil memory_kinds messages pair shared_receives windows) \
             $(patsubst %,tests/conn/test_%.py,deaths ends messages raw) tests/lab3/test_mutants.py \
             $(patsubst %,tests/patterns/test_%.py,deaths ring)
IWARP_ALL := $(addprefix tests/,conn files lab3 patterns rdmacm transport)

# What a build depends on; C files twice: `make ctest` compiles them itself.
SOURCES := $(shell find src examples/kernel -type f ! -name '*.py[co]' 2>/dev/null) $(wildcard meson.build meson.options)
C_CORE  := $(shell find src/nic src/msg -name '*.c' 2>/dev/null)
C_PERF  := $(wildcard src/rnic/_nic/*.c)
C_ALL   := $(shell find src/nic src/msg src/ibverbs src/heap src/libc src/preload src/rnic/_nic src/rnic/_disk tests/c tests/fuzz tests/ibverbs tests/ucma \
             tests/heap tests/lab3 tests/toolchains examples/c bench -name '*.[ch]' 2>/dev/null)
C_TESTS := $(wildcard tests/c/test_*.c)
C_VERBS := $(wildcard tests/ibverbs/c/test_*.c)
C_FUZZ  := $(wildcard tests/fuzz/fuzz_*.c)
C_HELP  := $(filter-out $(C_TESTS) $(C_FUZZ),$(wildcard tests/c/*.c tests/fuzz/*.c))
PY_ALL  := src tests tools examples bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test build lint format ctest tsan fuzz mutants differential interop soak bench wheels conformance \
        chaos containers programs pyverbs bare clean distclean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---------------------------------------------------------------- the virtual environment

# Two stamps: tools and libraries change with pyproject.toml, rnic itself with every source.
$(VENV)/.tools: pyproject.toml tools/requires.py
	@sh tools/check-build.sh $(PYTHON)
	@[ -x $(BIN)/python ] || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing what rnic is built with"
	@$(BIN)/python tools/requires.py build run > $(VENV)/tools.txt
	@command -v ninja >/dev/null || echo ninja >> $(VENV)/tools.txt
	@$(PIP) install -r $(VENV)/tools.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.tools
	@echo "installing what rnic is tested with"
	@$(BIN)/python tools/requires.py dev > $(VENV)/dev.txt
	@$(PIP) install -r $(VENV)/dev.txt
	@touch $@

# The build directory stays, so that ninja compiles only what changed.  (-C is newer than Debian 12's pip.)
# The stamp is as old as the beginning, so that what is edited meanwhile is built by the next `make`.
$(VENV)/.rnic: $(VENV)/.tools $(SOURCES)
	@sh tools/check-build.sh $(PYTHON)
	@touch $@.begun
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(if $(V),,$(BIN)/python tools/progress.py "building rnic") \
	    $(BIN)/python -m pip -v --disable-pip-version-check install --no-build-isolation --no-deps \
	    --force-reinstall --config-settings=build-dir=$(VENV)/build .
	@mv $@.begun $@

build: $(VENV)/.rnic ## rnic in .venv

demo: build ## a file by RDMA WRITE between two processes, then latency and bandwidth
	@$(BIN)/rnic demo

# ---------------------------------------------------------------- tests

# Files and folders of tests that ARGS names; without one all tests are meant, and those of LOCAL and IWARP again.
CHOSEN = $(filter tests tests/%,$(ARGS))

PARTS = $(BIN)/python tests/parts.py $(VENV)/parts $(WORKERS) $(ARGS)
WIRE  = tests $(addprefix --ignore=tests/,interop fuzz packaging toolchains)
MORE  = -- 'by shared memory' RNIC_LOCAL=on $(LOCAL) -- 'over iWARP' RNIC_TRANSPORT=iwarp $(IWARP)

test: build $(VENV)/.dev ## everything that needs neither root nor a peer; ARGS="tests/cli -k perf": that alone
	@$(PARTS) $(if $(CHOSEN),-- 'chosen tests',-- 'over the wire' $(WIRE) $(MORE))

bare: ## `make demo` and `make test` by an ordinary user of a bare Debian (root): SUITE=trixie PYTHON=python3.12
	@tools/bare.sh

differential: build $(VENV)/.dev ## random programs by every way that bytes take, SEED=1 PROGRAMS=1000 WAYS='wire'
	@$(BIN)/python tests/differential --seed $(SEED) --programs $(or $(PROGRAMS),1000) $(if $(WAYS),--ways '$(WAYS)') $(ARGS)

# Each worker has virtual machines.
interop: build $(VENV)/.dev ## against the Linux kernel's rdma_rxe in a virtual machine (root, /dev/net/tun)
	@$(BIN)/python tests/interop/needs.py
	$(PYTEST) tests/interop -ra --durations=20 $(WORKERS) $(if $(WORKERS),-n 2) $(ARGS)

soak: build $(VENV)/.dev ## all of what .ci/run takes a sample of
	@failed=; run() { echo "$$*"; "$$@" || failed="$$failed, $$*"; }; \
	run $(MAKE) --no-print-directory ctest SEEDS=$(or $(SEEDS),2000) LIMIT=7200; \
	run $(MAKE) --no-print-directory tsan SECONDS_EACH=300 LIMIT=7200; \
	run env RNIC_SOAK=1 $(PARTS) -ra -- 'over the wire' tests $(addprefix --ignore=tests/,interop fuzz) \
	    -- 'by shared memory' RNIC_LOCAL=on $(LOCAL_ALL) -- 'over iWARP' RNIC_TRANSPORT=iwarp $(IWARP_ALL); \
	for suite in bookworm trixie forky; do run env SUITE=$$suite tools/bare.sh; done; \
	run env PYTHON=python3.12 tools/bare.sh; \
	run $(MAKE) --no-print-directory chaos SECONDS=$(or $(SECONDS),1800); \
	run $(MAKE) --no-print-directory programs SECONDS=60; \
	run env RNIC_SOAK=1 $(MAKE) --no-print-directory interop; \
	run $(MAKE) --no-print-directory fuzz CASES=$(or $(CASES),2000000); \
	[ -z "$$failed" ] || { echo "failed: $${failed#, }"; exit 1; }

chaos: build ## processes in verified traffic, killed, stopped, limited: SECONDS=60 SEED=1
	PYTHONPATH=tests $(BIN)/python -m chaos --seconds $(or $(SECONDS),60) --seed $(SEED) $(ARGS)

programs: build ## what package indexes have, each under `rnic run`, SECONDS=60 (NIXL, Mooncake, QEMU, MPI, libfabric, iSER, fio, Ceph)
	PYTHONPATH=tests $(BIN)/python -m outside --seconds $(or $(SECONDS),60) --folder $(VENV)/outside

containers: build $(VENV)/.dev ## in every kind of container that this machine can make
	RNIC_SOAK=1 $(PYTEST) tests/containers -ra $(WORKERS) $(ARGS)

bench: build $(VENV)/.dev ## figures beside their peers (sh bench/peers.sh), ARGS=--all: also plots, and a guest
	$(BIN)/python bench $(ARGS)

wheels: $(VENV)/.dev ## the sdist, and a manylinux wheel for each Python that this machine has, in dist/
	@rm -rf dist
	@$(BIN)/python -m tools.wheels $(ARGS)

lint: $(VENV)/.dev build ## style, types and layout, nothing is changed
	@failed=; run() { echo "$$1 $$2"; "$(BIN)/$$@" || failed=1; }; \
	run ruff check $(wildcard $(PY_ALL)); \
	run ruff format --check $(wildcard $(PY_ALL)); \
	run mypy; \
	run clang-format --dry-run --Werror $(C_ALL); \
	[ -z "$$failed" ]

format: $(VENV)/.dev ## rewrite to the style that lint asks for
	-@$(BIN)/ruff check --fix $(wildcard $(PY_ALL))
	$(BIN)/ruff format $(wildcard $(PY_ALL))
	@$(if $(C_ALL),$(BIN)/clang-format -i $(C_ALL),:)

pyverbs: build ## rdma-core's own Python tests under `rnic run`, ARGS="test_mr test_qp" (Debian's python3-pyverbs)
	@$(BIN)/python tests/rdma_core $(ARGS)

conformance: $(VENV)/.tools ## docs/conformance.md from the table in tests/conformance
	$(BIN)/python tools/print_conformance.py

# ---------------------------------------------------------------- C under AddressSanitizer and UBSan

ASAN    := build-asan
ifeq ($(origin CC),default)
CC      := $(firstword $(foreach c,cc gcc clang,$(shell command -v $(c))))
endif
A_FLAGS := -std=gnu11 -Isrc/nic -Isrc -Isrc/rnic/_nic -Itests/c -Itests/fuzz -g -O1 -fno-omit-frame-pointer -pthread \
           -D_GNU_SOURCE -DRNIC_VERSION='"asan"' -Wall -Wextra -Wshadow -Werror -fsanitize=address,undefined -fno-sanitize-recover=all
A_CORE  := $(patsubst %.c,$(ASAN)/%.o,$(C_CORE) $(C_PERF) $(C_HELP))
A_HELP  := $(ASAN)/tests/c/check.o $(ASAN)/tests/c/fabric.o $(ASAN)/tests/fuzz/forge.o
A_BINS  := $(C_TESTS:%.c=$(ASAN)/%) $(C_FUZZ:%.c=$(ASAN)/%)
A_VERBS := $(patsubst %.c,$(ASAN)/%.o,$(wildcard src/ibverbs/*.c))
V_BINS  := $(C_VERBS:%.c=$(ASAN)/%) $(ASAN)/tests/ibverbs/sequences/play
TSAN    := build-tsan
T_FLAGS := $(filter-out -fsanitize% -fno-sanitize%,$(A_FLAGS)) -fsanitize=thread -Wno-tsan
T_TESTS := $(wildcard tests/c/test_threads.c tests/c/test_beside.c tests/c/test_hammer.c tests/c/test_drive.c)
T_CORE  := $(patsubst %.c,$(TSAN)/%.o,$(C_CORE) tests/c/check.c tests/c/live.c)
SEED    ?= 1
CASES   ?= 200000

export ASAN_OPTIONS  ?= abort_on_error=0:detect_leaks=1
export UBSAN_OPTIONS ?= print_stacktrace=1

ctest: $(C_TESTS:%.c=$(ASAN)/%) $(C_VERBS:%.c=$(ASAN)/%) ## the C tests under AddressSanitizer and UBSan
	@run=$$($(PYTHON) tests/namespaces.py echo $(PYTHON) tests/namespaces.py 2>/dev/null); \
	failed=; for t in $^; do \
	    if $$run timeout $(or $(LIMIT),3600) $$t; then echo "ok $$t"; else echo "FAILED $$t"; failed=1; fi; \
	done; [ -z "$$failed" ] && echo "$(words $^) C test programs passed"

tsan: $(T_TESTS:%.c=$(TSAN)/%) ## threads on one device under ThreadSanitizer, SECONDS_EACH=5 a test
	@failed=; for t in $^; do \
	    SECONDS_EACH=$(or $(SECONDS_EACH),5) TSAN_OPTIONS="halt_on_error=0 exitcode=66 $(TSAN_OPTIONS)" \
	        timeout $(or $(LIMIT),3600) $$t || failed=1; \
	done; [ -z "$$failed" ]

fuzz: $(C_FUZZ:%.c=$(ASAN)/%) ## hostile packets to a live queue pair, SEED=1 CASES=200000
	@[ -n "$^" ] || echo "make fuzz: tests/fuzz holds no fuzz_*.c"
	@for t in $^; do echo "$$t $(SEED) $(CASES)"; timeout 3600 $$t $(SEED) $(CASES) || exit 1; done

$(ASAN)/%.o: %.c Makefile
	@mkdir -p $(@D)
	@[ -n "$(CC)" ] || sh tools/check-build.sh $(PYTHON)
	$(if $(V),,@echo "  CC $<";) $(CC) $(A_FLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(ASAN)/core.a: $(A_CORE) $(A_HELP)
	@rm -f $@; ar rcs $@ $^

$(A_BINS): %: %.o $(ASAN)/core.a
	$(if $(V),,@echo "  LD $@";) $(CC) $(A_FLAGS) $^ -o $@

# With libibverbs' functions; what uses them alone is as any program is.
$(A_VERBS) $(V_BINS:%=%.o): A_FLAGS += -Isrc/ibverbs -Isrc/ibverbs/include

$(V_BINS): %: %.o $(A_VERBS) $(ASAN)/core.a
	$(if $(V),,@echo "  LD $@";) $(CC) $(A_FLAGS) $^ -o $@

$(TSAN)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC $< (tsan)";) $(CC) $(T_FLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(T_TESTS:%.c=$(TSAN)/%): %: %.o $(T_CORE)
	$(if $(V),,@echo "  LD $@";) $(CC) $(T_FLAGS) $^ -o $@

# ---------------------------------------------------------------- mutants: the core as one library, compiled in a hurry

MUTANTS := build-mutants
M_FLAGS := -std=gnu11 -Isrc/nic -Isrc -Isrc/rnic/_nic -Itests/c -Itests/fuzz -O1 -fPIC -w -pthread -D_GNU_SOURCE -DRNIC_VERSION=0
M_CORE  := $(patsubst %.c,$(MUTANTS)/%.o,$(C_CORE) $(C_PERF))
M_HELP  := $(patsubst %.c,$(MUTANTS)/%.o,$(C_HELP))
M_BINS  := $(C_TESTS:%.c=$(MUTANTS)/%)
M_NIC   := $(MUTANTS)/nic.so

mutants: build $(VENV)/.dev $(M_BINS) $(M_NIC) ## tests notice wrong changes, ROOM=roce SEED=1 SAMPLE=20 THOROUGH=1
	@run=$$($(BIN)/python tests/namespaces.py echo $(BIN)/python tests/namespaces.py 2>/dev/null); \
	$$run $(BIN)/python -m tools.mutants --flags '$(CC) $(M_FLAGS)' --seed $(SEED) --sample $(or $(SAMPLE),20) \
	    $(if $(ROOM),--rooms $(ROOM)) $(if $(THOROUGH),--thorough) $(ARGS)

$(MUTANTS)/%.o: %.c Makefile
	@mkdir -p $(@D)
	@$(CC) $(M_FLAGS) -MMD -MP -c $< -o $@

$(MUTANTS)/libcore.so: $(M_CORE)
	@$(CC) -shared -o $@ -Wl,-soname,libcore.so -Wl,-Bsymbolic -pthread $^

$(MUTANTS)/help.a: $(M_HELP)
	@rm -f $@; ar rcs $@ $^

$(M_BINS): %: %.o $(MUTANTS)/help.a $(MUTANTS)/libcore.so
	@$(CC) -pthread $^ -o $@

$(MUTANTS)/nic.c: src/rnic/_nic/nic.pyx $(wildcard src/rnic/_nic/*.px[id])
	@mkdir -p $(@D)
	@$(BIN)/cython -3 $< -o $@

$(M_NIC): $(MUTANTS)/nic.c $(MUTANTS)/libcore.so
	@$(CC) $(M_FLAGS) -shared $$($(BIN)/python -c 'import sysconfig; print("-I" + sysconfig.get_path("include"))') $^ -o $@

-include $(M_CORE:.o=.d) $(M_HELP:.o=.d) $(M_BINS:=.d) $(A_VERBS:.o=.d) $(V_BINS:=.d)
-include $(T_CORE:.o=.d) $(T_TESTS:%.c=$(TSAN)/%.d) $(A_CORE:.o=.d) $(A_HELP:.o=.d) $(A_BINS:=.d)
.SECONDARY:

clean: ## builds, not the virtual environment
	rm -rf $(ASAN) $(TSAN) $(MUTANTS) $(VENV)/build $(VENV)/.rnic build dist .mypy_cache .pytest_cache .ruff_cache

distclean: clean ## the virtual environment too
	rm -rf $(VENV)
