# Everything runs in .venv, which `make setup` builds once; another Python: make PYTHON=python3.12 setup
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q
STAMP := $(VENV)/.stamp
OUT := out
DOCS := "sphinx>=8.2,<10" "myst-nb>=1.4" "myst-parser>=5" "pydata-sphinx-theme>=0.24"
# `make gpu` runs in .venv, whose torch is a CUDA one only where TORCH or the index says so; with GPU_PY=python3 it runs in that
# Python, with the torch and packages that it has, and installs nothing; without pandas, results are written but no report
GPU_PY ?= $(PY)
GPU_ARGS ?=
GPU_NEEDS := $(if $(filter $(PY),$(GPU_PY)),$(STAMP))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-for sweep lint types docs notebooks bench bench-report solver-table gpu test-matrix clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP) ## build .venv with all that the other targets need

# torch comes first. Packages that would install a torch of their own come without their dependencies: torchvision, timm, and
# the frameworks whose loops the tests of integrations run (accelerate, peft, lightning).
$(STAMP): pyproject.toml Makefile tools/complete_torchvision.py tools/torchvision_plain_ops.py tools/compile_kernels.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Rekindle needs Python 3.11 or newer, and '$(PYTHON)' is not; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	$(PIP) numpy scipy numba rich typer pytest pytest-xdist hypothesis ruff mypy "pandas>=2.2" "matplotlib>=3.9"
	$(PIP) --no-deps $(TORCHVISION) timm==1.0.31
	$(PIP) pillow pyyaml huggingface_hub safetensors transformers==5.23.0
	$(PIP) --no-deps accelerate==1.15.0 peft==0.21.2 lightning==2.6.6 torchmetrics==1.9.0 lightning-utilities==0.15.3
	$(PIP) psutil nbclient ipykernel build "pyright[nodejs]" selenium
	$(PY) tools/complete_torchvision.py
	$(PIP) --no-deps -e .
	$(PY) tools/compile_kernels.py
	@touch $@

demo: $(STAMP) ## the main job end to end: plan, train plain and planned, compare bit for bit
	$(VENV)/bin/rekindle demo --out $(OUT)

# On two cores, after `make setup` in a fresh clone: 12 to 20 minutes, by the machine.
test: $(STAMP) ## the tests of every feature, in 12 to 20 minutes
	$(PY) -m pytest -n 2 --dist loadfile

test-for: $(STAMP) ## the tests of one file: make test-for FILE=src/rekindle/torch/serve/planned.py
	@tests=$$($(PY) tools/tests_of.py $(FILE)) && $(PY) -m pytest -n 2 --dist loadfile $$tests

# Before an issue is called resolved. On two cores 50 to 90 minutes: a third for what `make test` leaves out and its property
# tests with eight times as many examples, 10 for 300 sequences against an eager twin, 10 for every fourth configuration of timm
# and transformers (which ones: REKINDLE_SWEEP=1/4, 2/4, 3/4, or all of the 280, which takes 50 minutes: see
# tests/sweep/test_configurations.py). One hash seed for all processes: a model whose own code loops over a set of strings runs its
# ops in another order in a process with another seed (ModernBERT's decoder in transformers does), and is another graph there.
sweep: $(STAMP) ## what `make test` leaves out, and more examples: 50 to 90 minutes
	$(PY) -m pytest -n 2 --dist loadfile -m "sweep or hypothesis" --hypothesis-profile=sweep
	PYTHONHASHSEED=0 $(PY) -m pytest -n 2 --dist worksteal -m sweep tests/sweep

# Two environments of 2 and 6 GB, beside .venv; MATRIX=2.11.0-py3.12 takes one of them. On two cores about 40 minutes with both built.
test-matrix: ## the tests on each supported torch and Python, and CUDA's paths without a GPU
	$(PYTHON) tools/run_matrix.py $(MATRIX)

lint: $(STAMP) ## ruff: rules and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(STAMP) ## mypy on the package, mypy --strict and pyright on a program that uses every public name
	$(VENV)/bin/mypy src/rekindle
	$(VENV)/bin/mypy --strict --follow-imports=silent tests/typed/public_names.py
	$(VENV)/bin/pyright tests/typed/public_names.py

# MyST-NB leaves a copy of the notebooks beside the pages' folder; -W: a warning, such as a link that leads nowhere, is an error
docs: $(VENV)/.docs ## the documentation as pages in site/, in well under a minute, offline
	$(PY) docs/generate.py
	$(PY) -m sphinx -W --keep-going --quiet docs site
	@rm -rf jupyter_execute

$(VENV)/.docs: $(STAMP)
	$(PIP) $(DOCS)
	@touch $@

notebooks: $(STAMP) ## run the notebooks and keep their outputs, which the documentation shows
	$(PY) tools/run_notebooks.py

bench: $(STAMP) ## the published table, ours beside it; rows go to out/bench-seeds.jsonl
	@mkdir -p $(OUT)
	$(PY) benchmarks/bench.py --suite seeds --out $(OUT)/bench-seeds.jsonl

ROWS = $(wildcard benchmarks/results/*-bench-*.jsonl)
bench-report: $(STAMP) ## docs/benchmarks.md from the rows in benchmarks/results/ (others: ROWS="a.jsonl b.jsonl")
	$(PY) benchmarks/report.py --rows $(ROWS)

solver-table: $(STAMP) ## all solvers on five graphs, as docs/solver_table.md
	$(PY) benchmarks/solvers.py

gpu: $(GPU_NEEDS) ## tests and benchmarks on a GPU, in 9 minutes, with this machine's own torch: GPU_PY=python3
	$(GPU_PY) benchmarks/gpu.py $(GPU_ARGS)

clean: ## remove what was built, but for .venv
	rm -rf $(OUT) site docs/solvers docs/notebooks docs/examples.md docs/operators.md docs/api.md docs/api jupyter_execute build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
