# Each target makes .venv when it is missing or older than what it was made from; after that none needs a network.
#   make demo PYTHON=python3.12                                   another interpreter (3.10 or newer)
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu    a CPU build of torch where the usual index has a CUDA one
#   make demo ARGS="--model lstm --hidden 128"                    options of the script; of figures, test, bench, aot and gpu too

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
RANKS ?= 4
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# compat: a path of the clone, so that a script beside the clone does not take its folder for the package.
EDITABLE := --config-settings editable_mode=compat --editable

.PHONY: demo demo-distributed test check bench figures aot gpu clean

demo: $(READY)
	$(PY) examples/train_language_model.py $(ARGS)

# A language model on RANKS processes of this machine, by a schedule: half a minute on 2 cores. With other schedules:
#   make demo-distributed ARGS="--schedule one_f_one_b --microbatches 8"
#   make demo-distributed RANKS=2 ARGS="--schedule ddp"
# A core a rank is best; with fewer, ranks wait for cores, which the measured diagram shows.
demo-distributed: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/torchrun --nproc-per-node $(RANKS) examples/train_pipeline.py $(or $(ARGS),--schedule lpp --G 2)

test: $(READY)
	$(PY) -m pytest -n 2 $(ARGS)

check: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest tests/test_house.py

bench: $(READY)
	$(PY) benchmarks/recurrent.py --readme $(ARGS)

figures: $(READY)
	$(PY) -m figures $(ARGS)

# Needs no GPU. torch brings triton along where it has CUDA; elsewhere this fetches it, some 250 MB.
aot: $(READY)
	$(PY) -m pip install --quiet --constraint constraints.txt $(EDITABLE) ".[triton]"
	$(PY) -m tests.triton.aot $(ARGS)

# Needs a CUDA device, and some eight minutes. Where torch, triton and pytest are installed: make gpu PY=python3 READY=
gpu: export PYTHONPATH := $(CURDIR)
gpu: $(READY)
	$(PY) benchmarks/gpu.py --check
	$(PY) -m pytest -n 4 tests/triton
	$(PY) -m pytest -m gpu
	$(PY) benchmarks/gpu.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis demo.png pipeline-*.svg figures/out

$(READY): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --constraint constraints.txt $(TORCH_INDEX:%=--extra-index-url=%) torch
	$(PY) -m pip install --constraint constraints.txt $(EDITABLE) ".[plot,test,dev]"
	touch $@
