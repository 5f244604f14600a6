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
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
# compat: a path of the clone, so that a script beside the clone does not take its folder for the package.
EDITABLE := --config-settings editable_mode=compat --editable

TORCH ?= 2.12.1

# Two processes share the tests, those of one group in one of them. Memory that is freed stays with the process: to give
# it back and ask for it again takes glibc one second of fifteen.
PYTEST = MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=1000000000 $(PY) -m pytest -n 2 --dist loadgroup

.PHONY: demo demo-distributed test test-all test-models models test-clients clients test-torch check docs look pictures bench figures aot aarch64 gpu wheel check-wheel clean

demo: $(DEMO)
	@echo "Some two minutes on two quiet cores, at most four elsewhere; a line every few seconds says how far it is."
	@echo "Shorter: make demo ARGS='--steps 200'"
	$(PY) examples/train_language_model.py $(ARGS)

# A language model on RANKS processes of this machine, by a schedule: half a minute on 2 cores. With other schedules:
#   make demo-distributed ARGS="--schedule one_f_one_b --microbatches 8"
#   make demo-distributed RANKS=2 ARGS="--schedule ddp"
# A core a rank is best; with fewer, ranks wait for cores, which the measured diagram shows.
demo-distributed: $(DEMO)
	OMP_NUM_THREADS=1 $(VENV)/bin/torchrun --nproc-per-node $(RANKS) examples/train_pipeline.py $(or $(ARGS),--schedule lpp --G 2)

test: $(READY)
	@echo "On 2 cores: some 12 minutes the first time, while kernels are built, and 8 when they are in the cache; ARGS=tests/scan runs a part."
	$(PYTEST) -m "not slow and not models and not clients" $(ARGS)

# The long tail too: every case of tests that have many, benchmarks, figures, examples and ranks. Three times as long.
test-all: $(READY)
	BPPSA_TESTS=all $(PYTEST) -m "not models and not clients" $(ARGS)

# Models of transformers, timm and torchvision, which this fetches; no weights.
test-models: models
	BPPSA_TESTS=all $(PYTEST) tests/models $(ARGS)

models: $(READY)
	$(PY) -m pip install --quiet --constraint constraints.txt $(TORCH_INDEX:%=--extra-index-url=%) $(EDITABLE) ".[models]"

# Layers of packages that loop over time in Python, which this fetches. speechbrain asks for torchaudio, whose newer builds
# may want another torch: what is compiled of it is then left out.
test-clients: clients
	$(PYTEST) tests/clients $(ARGS)

clients: $(READY)
	$(PY) -m pip install --quiet --constraint constraints.txt $(TORCH_INDEX:%=--extra-index-url=%) $(EDITABLE) ".[clients]"

# Pruned models with another torch, which brings some gigabytes along where the index has it for CUDA alone:
#   make test-torch TORCH=2.12.1
test-torch:
	test -x .venv-torch/bin/python || $(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install $(TORCH_INDEX:%=--extra-index-url=%) torch==$(TORCH)
	.venv-torch/bin/python -m pip install $(EDITABLE) ".[test]"
	.venv-torch/bin/python -m pytest -n 2 tests/pruned tests/modules tests/backend $(ARGS)

check: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest tests/test_house.py

# The pages of docs/ as a site in site/. A link that leads nowhere is an error.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)
	$(PY) -m pip install --quiet --constraint constraints.txt $(EDITABLE) ".[docs]"
	$(PY) docs/gallery.py
	$(PY) -m mkdocs build --strict

# Pictures of the site's pages on a desktop and on a phone, by a headless Chromium (Debian: apt install chromium).
look: docs
	$(PY) docs/look.py

# README's short table and both of its pictures. The demo takes minutes, and wants a quiet machine.
pictures: $(READY)
	$(PY) benchmarks/summary.py
	$(PY) examples/train_language_model.py --minutes 60 --output docs/pictures/demo.svg

bench: $(READY)
	$(PY) benchmarks/recurrent.py --page $(ARGS)

figures: $(READY)
	$(PY) -m figures $(ARGS)

# Needs no GPU. torch brings triton along where it has CUDA; elsewhere this fetches it, some 250 MB.
aot: $(READY)
	$(PY) -m pip install --quiet --constraint constraints.txt $(EDITABLE) ".[triton,cuda-aot]"
	$(PY) -m tests.triton.aot $(ARGS)
	$(PY) -m tests.cuda.aot

# Kernels for 64-bit ARM by a cross compiler, run by an emulator beside the interpreter; on 2 cores some 5 minutes the first
# time. Debian: apt install g++-aarch64-linux-gnu qemu-user; without them it says so. ARGS="GRU products" tries those alone.
aarch64: $(READY)
	BPPSA_ISA=armv8-a $(PY) -m tests.aarch64 $(ARGS)

# Needs a CUDA device, and some nine minutes, what is least known first. Where torch, triton and pytest are installed:
# make gpu PY=python3 READY=
gpu: export PYTHONPATH := $(CURDIR)
gpu: $(READY)
	$(PY) benchmarks/gpu.py --check
	$(PY) benchmarks/row_sweeps.py
	-$(PY) -m pytest -n 4 tests/cuda
	$(PY) -m pytest -n 4 tests/triton
	$(PY) -m pytest -m gpu
	$(PY) benchmarks/gpu.py $(ARGS)
	BPPSA_GPU_PRINTER=cuda $(PY) benchmarks/gpu.py $(ARGS)

# dist/bppsa-...-manylinux_....whl, with kernels for machines that have no compiler. On 2 cores some 15 minutes the first
# time; kernels that build/kernels has are not built again.
LEVELS ?= x86-64-v4 x86-64-v3
wheel: $(READY)
	for level in $(LEVELS); do BPPSA_ISA=$$level $(PY) -m wheels.build build/kernels || exit 1; done
	test -x build/tools/bin/python || $(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --upgrade "setuptools>=77" wheel auditwheel
	build/tools/bin/python wheels/pack.py build/kernels dist

# Trains with the wheel of dist/ in an environment of its own that has no compiler and no home.
check-wheel:
	$(PYTHON) wheels/check.py dist $(TORCH_INDEX:%=--extra-index-url=%)

clean:
	rm -rf $(VENV) .venv-torch build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis demo.png pipeline-*.svg figures/out

$(DEMO): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --constraint constraints.txt $(TORCH_INDEX:%=--extra-index-url=%) torch
	$(PY) -m pip install --constraint constraints.txt $(EDITABLE) ".[plot]"
	touch $@

# Linters and what the tests need besides.
$(READY): $(DEMO)
	$(PY) -m pip install --constraint constraints.txt $(EDITABLE) ".[plot,test,dev]"
	touch $@
