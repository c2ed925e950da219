# Every target sets up .venv itself. Requirements: python3, make and a C++ compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/core/*.h src/core/*.cpp src/core/bindings/*)
CPP := $(wildcard src/core/*.h src/core/*.cpp src/core/bindings/* tests/*/*.h tests/*/*.cpp)
FUZZ_SECONDS ?= 600
TEST_OPTIONS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test browser screenshots lint format bench sanitize fuzz stubs reference clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

demo: $(VENV)/demo.stamp $(VENV)/covey.stamp ## Write a dataset of drawn glyphs and read it back.
	$(BIN)/python examples/glyphs.py

check: $(VENV)/test.stamp $(VENV)/covey.stamp ## Run the unit tests (numpy only, under a minute).
	$(BIN)/python -m pytest --numprocesses=2 tests/unit src/covey --ignore=src/covey/adapters --ignore=src/covey/samplers

test: $(VENV)/test.stamp $(VENV)/covey.stamp build/tests/native_tests browser ## Run every test, with every framework.
	$(BIN)/python tools/run_tests.py $(TEST_OPTIONS)

browser: ## Install chromium for the tests of `covey view` (Debian and Ubuntu), unless it is installed.
	@tools/install_browser.sh

screenshots: $(VENV)/test.stamp $(VENV)/covey.stamp browser ## Draw docs/images: the pages of `covey view`.
	PYTHONPATH=tests/helpers:examples $(BIN)/python tools/screenshots.py

lint: $(VENV)/lint.stamp $(VENV)/covey.stamp ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/python tools/stubs.py --check

format: $(VENV)/lint.stamp ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: $(VENV)/bench.stamp $(VENV)/covey.stamp ## Run the benchmarks and print the tables of RESULTS.md.
	$(BIN)/python -m benchmarks

sanitize: build/sanitize/native_tests ## Run the native tests under ASan and UBSan.
	build/sanitize/native_tests

fuzz: build/fuzz/fuzz_decode ## Fuzz the native readers and decoders under ASan (needs clang).
	mkdir -p build/fuzz/corpus build/fuzz/corpus_image
	build/fuzz/fuzz_decode -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -print_final_stats=1 \
		-artifact_prefix=build/fuzz/ -dict=tests/fuzz/example.dict build/fuzz/corpus tests/fuzz/corpus tests/hostile
	build/fuzz/fuzz_image -max_total_time=$(FUZZ_SECONDS) -max_len=2048 -print_final_stats=1 \
		-timeout=10 -malloc_limit_mb=512 -artifact_prefix=build/fuzz/ -dict=tests/fuzz/image.dict \
		build/fuzz/corpus_image tests/fuzz/corpus_image

stubs: $(VENV)/lint.stamp $(VENV)/covey.stamp ## Regenerate src/covey/_core.pyi.
	$(BIN)/python tools/stubs.py

reference: $(VENV)/test.stamp $(VENV)/covey.stamp ## Write docs/reference.md from the docstrings.
	$(BIN)/python tools/reference.py

clean: ## Remove .venv and everything that was built.
	rm -rf $(VENV) build dist demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/%.stamp: requirements/%.txt requirements/constraints.txt | $(BIN)/python
	$(PIP) install -r $<
	@touch $@

$(VENV)/test.stamp: requirements/test.txt requirements/legacy.txt requirements/constraints.txt | $(BIN)/python
	$(PIP) install -r requirements/test.txt
	$(PIP) install --no-deps -r requirements/legacy.txt
	@touch $@

$(VENV)/covey.stamp: $(NATIVE) $(VENV)/build.stamp
	$(PIP) install --no-build-isolation --editable .
	@touch $@

# The native tests are plain C++; cmake and ninja come from .venv.
CMAKE = PATH="$(CURDIR)/$(BIN):$$PATH" cmake -G Ninja -S . -DCOVEY_PYTHON=OFF
NATIVE_TESTS := $(NATIVE) $(wildcard tests/native/* tests/fuzz/*) $(VENV)/build.stamp

build/tests/native_tests: $(NATIVE_TESTS)
	$(CMAKE) -B build/tests -DCOVEY_TESTS=ON >/dev/null
	$(BIN)/cmake --build build/tests

build/sanitize/native_tests: $(NATIVE_TESTS)
	$(CMAKE) -B build/sanitize -DCOVEY_TESTS=ON -DCOVEY_SANITIZE=address,undefined \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
	$(BIN)/cmake --build build/sanitize

build/fuzz/fuzz_decode: $(NATIVE_TESTS)
	$(CMAKE) -B build/fuzz -DCOVEY_FUZZ=ON -DCOVEY_SANITIZE=address,undefined \
		-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
	$(BIN)/cmake --build build/fuzz
