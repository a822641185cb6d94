# Two commands for a newcomer: `make sweep` and `make test`. Each does its own set-up.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP_FLAGS ?= --disable-pip-version-check --quiet

.PHONY: sweep test check bench gpu-check setup clean

sweep: $(READY)  ## run the default study; more arguments: make sweep ARGS='topology=ep2_cp2 weights=random'
	$(BIN)/python -m pipeline $(ARGS)

test: $(READY)  ## run every test; more arguments: make test ARGS='-k growth'
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --ignore tests/slurm $(ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -q tests/slurm $(ARGS) || [ $$? -eq 5 ]  # alone: they take nodes and daemons away

check: $(READY)  ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy planner pipeline jobs/spec.py jobs/record.py jobs/launch.py jobs/completion.py jobs/checkpoint.py
	$(BIN)/lint-imports
	$(BIN)/python -m planner.catalogue | diff - docs/terms.md || { echo "docs/terms.md is stale: python -m planner.catalogue > docs/terms.md" >&2; exit 1; }

bench: $(READY)  ## ratios of speed and overhead, measured in one run
	$(BIN)/python -m pytest -q -s -m bench tests/bench

gpu-check: $(READY)  ## on a CUDA device: study=h200_single against its prices; exit code 3 without a device
	$(BIN)/python -m pipeline.gpu_check $(ARGS)

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python 3.11 to 3.13 is needed, $(PYTHON) is {v[0]}.{v[1]}; name another with make PYTHON=…")'
	@echo "setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
