# The main job
# make setup   install into .venv what training, the command and the demo need, at pinned versions
# make demo    profile a real model on this machine, and compare tuners on it
#
# Checks, as CI runs them
# make check   format, lint, types, and which module may import which
# make docs    build the documentation site into out/site; warnings are errors
# make quick   test the core: what decides, and what simulates it; under a minute
# make test    the tests, except those that make bench runs
# make mxnet   the engine kvstore, and the store for Gluon, with MXNet in an environment of its own
# make bench   benchmarks with their ratios, and the tests of the paper's scripts; needs an idle machine
# make faults  what goes wrong in training, on every engine, tuned and not: docs/faults.md; 10 minutes
# make night  make faults, random programs, worlds and delays: more than make test has
# make byteps  the engine byteps over BytePS, built from its source distribution in an environment of its own
# make horovod Horovod beside AutoByte on shaped links, built from its source distribution in an environment of its own
# make format  fix what a tool can fix
#
# Make results again
# make paper   figures, tables and claims of the papers, simulated: 12 to 15 minutes
# make claims  only paper/README.md, from the numbers that are there
# make paper-testbed  figures 3, 5, 6, 8, 9 and 10 on shaped links: root, about 5 hours a launch; MINUTES=15 stops it, and
#              the next time it goes on
# make gap     usbyte beside exhaustive search and the other policies, on random jobs
# make judge   every tuner in worlds that no tuner was made with: docs/data/judge_*.csv and docs/tuners.md.
#              It takes hours, and continues where it was stopped.
# make weights the meta-network: its data set and both fits, about 10 minutes on 2 cores
# make grid    the recorded grids of the testbed, and the simulator beside them: root, about 25 minutes
# make shaped  the measurements on shaped links in docs/benchmarks.md and docs/tuners.md: root, an idle machine, over three
#              hours. Remove a file of docs/data to measure it again.
# make record  what the tests compare with: look at the diff before you commit it
# make never-slower  `auto` beside DDP at its best bucket, in turn, on the cells of make shaped: root, an idle machine, about
#              two hours. Begins with 2 Gbit/s, and continues where it was stopped.
# make versions  the loops' tests with the oldest releases of Accelerate, transformers and Lightning that are supported
# make loops   loops of Accelerate, Trainer and Lightning on shaped links, each beside its DDP twin: root, 5 minutes
# make keras   Keras on TensorFlow on shaped links, beside TensorFlow's own ways: root, an idle machine, 35 minutes
# make mxnet-links  Gluon, and the engine kvstore, beside MXNet's own servers: root, an idle machine, 6 minutes
# make byteps-links  PyTorch over BytePS's servers, beside BytePS's own ways: root, an idle machine, 4 minutes
# make horovod-links PyTorch beside Horovod: root, an idle machine, 3 minutes
# make mocc    tables and figures of the congestion control for many objectives, simulated: at most 30 minutes on 2 cores
# make mocc-weights  the weights of the congestion controls that learn
# make gpu     what one GPU shows, by NCCL over shaped links: root, at most 8 minutes
#
# make clean   remove what these made

PYTHON ?= $(or $(shell command -v python3.11),python3)
BIN := .venv/bin
# --no-compile: half of the installed files are never imported; Python compiles the others when it imports them, and keeps
# what it compiled: else each of the tests' processes would compile all of PyTorch again
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
QUIET := --quiet --disable-pip-version-check --no-compile
define beside
	$(BIN)/python -m venv $(1)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])" > $(1)/lib/python$(VERSION)/site-packages/beside.pth
	echo $(CURDIR) >> $(1)/lib/python$(VERSION)/site-packages/beside.pth
endef
VERSION = $(shell $(BIN)/python -c "import sys; print('%d.%d' % sys.version_info[:2])")
GPU_PYTHON ?= $(firstword $(wildcard $(BIN)/python) python3)
DEMO := out/demo
# One thread and no AVX-512, so that numbers are the same on every CPU: a search may depend on the last digit
SAME := OMP_NUM_THREADS=1
ifeq ($(shell uname -m),x86_64)
SAME += OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
endif

# Tests that need the machine to themselves: they measure what links carry, or how long something takes
ALONE := $(addprefix tests/testbed/test_testbed_,calibration.py grid.py links.py priority.py probe.py)
ALONE += tests/test_demo.py tests/torch/exchange/test_ways.py $(addprefix tests/congestion/datapath/test_,kernel.py measure.py pacer.py relay.py tcp.py)
ELSEWHERE := tests/benchmarks tests/paper/test_paper_scripts.py

# With MXNet beside PyTorch; without it they are skipped
WITH_MXNET := tests/mxnet tests/scheduler/engines/test_carried.py tests/exchange/test_clusters.py
WITH_MXNET += tests/testbed/test_testbed_frontends.py::test_gluon_over_mxnets_servers_and_with_autobyte
WITH_MXNET += tests/test_examples.py::test_digits_are_learned_alike_by_gluon_with_and_without_autobyte

WITH_BYTEPS := tests/scheduler/engines/test_carried.py tests/exchange/test_clusters.py
WITH_BYTEPS += tests/testbed/test_testbed_frontends.py

# No process, no socket, no clock
CORE := $(filter-out %_engines.py,$(wildcard tests/scheduler/test_*.py)) tests/scheduler/policies tests/simulator
CORE += $(addprefix tests/test_,best.py bound.py config.py job.py registry.py retuning.py scenario.py trace.py tuning.py units.py)

MODELS := --model vgg16,gpt2,resnet50,densenet121 --compute 0.4s --steps 8

# no banner of MkDocs' theme about other site generators
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: setup demo quick test check docs format bench faults night gap judge weights grid paper claims paper-testbed record shaped never-slower loops keras mxnet-links byteps-links horovod-links versions gpu mxnet byteps horovod clean

setup: .venv/setup

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/setup: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[examples,plot,tune]'
	touch $@

.venv/test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[test]'
	touch .venv/setup $@

demo: .venv/setup $(DEMO)/small_vgg.json
	$(BIN)/autobyte compare --model $(DEMO)/small_vgg.json --workers 8 --bandwidth 1Gbit --out $(DEMO)/compare

$(DEMO)/small_vgg.json: | .venv/setup
	mkdir -p $(DEMO)
	$(BIN)/autobyte profile examples/small_vgg.py:make_model --input 16,3,64,64 --name small_vgg --out $@

quick: .venv/test
	$(SAME) $(BIN)/python -m pytest $(CORE) -n 2 --dist worksteal

# Three at a time on two cores: tests that train wait for ranks, timeouts and sockets most of the time
test: .venv/test
	$(SAME) $(BIN)/python -m pytest $(addprefix --ignore ,$(ALONE) $(ELSEWHERE)) -n 3 --dist worksteal --durations 15
	$(SAME) $(BIN)/python -m pytest $(ALONE) --durations 15

check: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.venv/docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	touch $@

docs: .venv/docs
	$(SITE)

# Beside PyTorch and all that tests need, which .venv has: MXNet and its like want an older NumPy, and get on with this one
.venv-mxnet/ready: Makefile .venv/test
	$(call beside,.venv-mxnet)
	.venv-mxnet/bin/python -m pip install $(QUIET) --no-deps mxnet==1.9.1 graphviz==0.8.4
	.venv-mxnet/bin/python -m pip install $(QUIET) requests
	touch $@

mxnet: .venv-mxnet/ready
	$(SAME) .venv-mxnet/bin/python -m pytest $(WITH_MXNET) -n 2 --dist worksteal --durations 5

# Over a stand-in of CUDA's runtime in host memory, or with CUDA=/usr/local/cuda over that one, NCCL and libnuma. It takes
# a C++ compiler, and some minutes. Its sources as they are, but for threads that receive: they would never rest, and lock
# each time a connection that those that send wait for
BYTEPS := byteps-0.2.5.post15
BYTEPS_BUILT := build/$(BYTEPS)/built$(if $(CUDA),-with-cuda)
REST := lk.unlock(); std::this_thread::sleep_for(std::chrono::microseconds(50)); continue
$(BYTEPS_BUILT): $(shell find tools/byteps -type f) .venv/test
	rm -rf build/$(BYTEPS)
	mkdir -p build
	$(BIN)/python -m pip download --quiet --no-deps --no-binary byteps -d build byteps==0.2.5.post15
	tar --no-same-owner -xzf build/$(BYTEPS).tar.gz -C build
	sed -i -e 's/lock_guard<std::mutex> lk(mu_)/unique_lock<std::mutex> lk(mu_)/' -e '/EAGAIN) {/{n;s/continue/$(REST)/}' \
		build/$(BYTEPS)/3rdparty/ps-lite/src/zmq_van.h
	$(MAKE) -j2 -f tools/byteps/Makefile SOURCE=$(CURDIR)/build/$(BYTEPS) PYTHON=$(BIN)/python CUDA=$(CUDA)
	touch $@

.venv-byteps/ready: $(BYTEPS_BUILT)
	$(call beside,.venv-byteps)
	cp -r build/$(BYTEPS)/byteps .venv-byteps/lib/python$(VERSION)/site-packages/
	touch $@

byteps: .venv-byteps/ready
	$(SAME) .venv-byteps/bin/python -m pytest $(WITH_BYTEPS) -k "BytePS or byteps" --durations 5

# Its sources, but for the version of C++, in which PyTorch's headers need 20: it takes CMake, a C++ compiler, some minutes
HOROVOD := horovod-0.28.1
build/$(HOROVOD)/built: .venv/test
	mkdir -p build
	$(BIN)/python -m pip download --quiet --no-deps --no-binary horovod -d build horovod==0.28.1
	tar --no-same-owner -xzf build/$(HOROVOD).tar.gz -C build
	sed -i 's/CXX_STANDARD 14/CXX_STANDARD 20/' build/$(HOROVOD)/CMakeLists.txt build/$(HOROVOD)/horovod/torch/CMakeLists.txt
	sed -i 's/iface = gloo_iface_;/iface = ParseGlooIface();/' build/$(HOROVOD)/horovod/common/gloo/gloo_context.cc
	cd build/$(HOROVOD) && HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
		HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS=-j2 $(CURDIR)/$(BIN)/python setup.py --quiet build
	touch $@

.venv-horovod/ready: build/$(HOROVOD)/built
	$(call beside,.venv-horovod)
	cp -r build/$(HOROVOD)/build/lib*/horovod .venv-horovod/lib/python$(VERSION)/site-packages/
	.venv-horovod/bin/python -m pip install $(QUIET) cloudpickle packaging pyyaml
	touch $@

horovod: .venv-horovod/ready
	$(SAME) .venv-horovod/bin/python -m pytest tests/testbed/test_testbed_frontends.py -k horovod --durations 5

format: .venv/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/test
	$(BIN)/python -m pytest tests/benchmarks tests/paper/test_paper_scripts.py -s

faults: .venv/test
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults.matrix

night: faults
	AUTOBYTE_PROGRAMS=2000 $(BIN)/python -m pytest tests/torch/test_optimizer_reads.py tests/test_fuzz.py
	AUTOBYTE_STEPS=1000 $(BIN)/python -m pytest tests/scheduler/test_engines.py -k jitter
	AUTOBYTE_EXAMPLES=5000 $(BIN)/python -m pytest tests/simulator/test_kernel.py

gap: .venv/test
	$(BIN)/python paper/usbyte_peers.py
	AUTOBYTE_JOBS=500 $(BIN)/python -m pytest tests/benchmarks/test_planning.py tests/paper/test_paper_usbyte.py -s --timeout 3600
	$(BIN)/python tools/usbyte_table.py

judge: .venv/test
	for what in static fresh scenarios before replay decisions tables; do \
		$(SAME) $(BIN)/python tools/judge_tuners.py $$what || exit 1; \
	done

weights: .venv/test
	$(BIN)/autobyte collect --out out/dataset
	$(BIN)/autobyte fit out/dataset --variant improved --epochs 30 --out autobyte/nets/weights/improved.npz
	$(BIN)/autobyte collect --protocol published --out out/published
	$(BIN)/autobyte fit out/published --variant paper --out autobyte/nets/weights/paper.npz

grid: .venv/test
	mkdir -p out
	$(BIN)/autobyte calibrate --out out/calibration.json --force
	$(BIN)/autobyte record out/testbed_grid.csv
	$(BIN)/autobyte validate --calibration out/calibration.json --grid out/testbed_grid.csv --plot out/validation.png

shaped: .venv/test
	$(BIN)/autobyte bench $(MODELS) --rate 1Gbit,2Gbit,500Mbit --windows 4 --repeats 1 --wire fp32 --real-time \
		--out docs/data/bench
	for cell in vgg16,0.063 gpt2,0.07 densenet121,1 resnet50,0.34; do \
		$(BIN)/autobyte bench --model $${cell%,*} --size-scale $${cell#*,} --compute 0.4s --steps 8 --rate 2Gbit --dilate 4 \
			--windows 4 --repeats 1 --wire fp32 --real-time --out docs/data/dilated || exit 1; \
	done
	$(BIN)/autobyte bench $(MODELS) --rate 1Gbit --clip 1.0 --windows 4 --repeats 1 --wire fp32 --real-time \
		--out docs/data/clip
	$(BIN)/autobyte bench --model densenet121 --size-scale 1 --compute 0.4s --steps 8 --rate 1Gbit --dilate 3 --clip 1.0 \
		--windows 4 --repeats 1 --wire fp32 --real-time --out docs/data/clip-dilated
	$(BIN)/autobyte bench --model vgg16 --size-scale 0.1 --repeats 1 --real-time --out docs/data/reach
	$(BIN)/autobyte bench --model vgg16,gpt2,resnet50 --compute 0.4s --steps 8 --rate 1Gbit --real-time --out docs/data/auto \
		--repeats 3 --calibration paper/data/testbed_calibration.json --policies auto
	for model in vgg16 gpt2 resnet50 densenet121; do \
		$(BIN)/autobyte bench --model $$model --compute 0.4s --steps 8 --rate 1Gbit --real-time --out docs/data/policies \
			--repeats 1 --calibration paper/data/testbed_calibration.json \
			--policies fifo,wfbp,ddp,horovod,megatron,mgwfbp,p3,tictac,bytescheduler:fusion=1,usbyte,dear,auto || exit 1; \
	done
	$(BIN)/python tools/live_tuners.py
	$(BIN)/python tools/shaped_tables.py

never-slower: .venv/test
	$(BIN)/python tools/never_slower.py

loops: .venv/test
	$(BIN)/python tests/benchmarks/loops.py

# Remove files of docs/data/frontends to measure them again
SEARCHES := --windows 12 --repeats 3
BRIEF := --windows 4 --repeats 1
FRONTENDS := --hosts 4 --rate 1Gbit --compute 0.3s --steps 20 --real-time --out docs/data/frontends
keras: .venv/test
	$(BIN)/autobyte bench --frontend keras-tf --model vgg16,resnet50 $(SEARCHES) $(FRONTENDS)
	$(BIN)/python tools/frontend_tables.py

mxnet-links: .venv-mxnet/ready
	.venv-mxnet/bin/python -m autobyte bench --frontend mxnet --engine kvstore --model vgg16 $(SEARCHES) $(FRONTENDS)
	.venv-mxnet/bin/python -m autobyte bench --frontend mxnet --engine kvstore --model resnet50 $(BRIEF) $(FRONTENDS)
	.venv-mxnet/bin/python -m autobyte bench --frontend torch --engine kvstore --model vgg16 $(BRIEF) $(FRONTENDS)
	$(BIN)/python tools/frontend_tables.py

# Not with real-time priority: threads of BytePS hardly rest
byteps-links: .venv-byteps/ready
	.venv-byteps/bin/python -m autobyte bench --frontend byteps --engine byteps --model vgg16 $(BRIEF) $(filter-out --real-time,$(FRONTENDS)) --hosts 2
	$(BIN)/python tools/frontend_tables.py

horovod-links: .venv-horovod/ready
	.venv-horovod/bin/python -m autobyte bench --frontend horovod --model vgg16 $(BRIEF) $(FRONTENDS)
	$(BIN)/python tools/frontend_tables.py

versions: .venv/test
	$(filter-out -c constraints.txt,$(PIP)) --upgrade --no-deps --target out/oldest -r tests/integrations/oldest.txt
	PYTHONPATH=out/oldest $(BIN)/python -m pytest tests/integrations

gpu:
	$(GPU_PYTHON) tools/gpu/run.py

# Two scripts at a time: each also imports, and draws, on one core
paper: .venv/test
	ls paper/fig*.py paper/table*.py paper/usbyte*.py paper/when*.py | $(SAME) xargs -n 1 -P 2 $(BIN)/python -W error
	$(SAME) $(BIN)/python -W error paper/claims.py

claims: .venv/test
	$(BIN)/python -W error paper/claims.py

# One launch of every cell, then two, then three; what is there stays. It begins no launch after so many minutes.
MINUTES ?= 1440
paper-testbed: .venv/test
	end=$$(($$(date +%s) + 60 * $(MINUTES))); \
	for launches in 1 2 3; do \
		for figure in "fig06_dynamic_bandwidth --crossing" fig03_optimal_pairs fig06_dynamic_bandwidth fig05_convergence \
			fig08_parameter_server fig09_allreduce fig10_search_cost; do \
			set -- $$figure; \
			OMP_NUM_THREADS=1 $(BIN)/python paper/$$1.py --testbed $$2 --launches $$launches \
				--minutes $$((($$end - $$(date +%s)) / 60)) || exit 1; \
		done; \
	done
	$(BIN)/python paper/claims.py

.PHONY: mocc mocc-weights

mocc-weights: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/autobyte congestion train --out autobyte/congestion/weights/mocc.npz
	for mode in aurora orca-style; do \
		OMP_NUM_THREADS=1 $(BIN)/autobyte congestion train --mode $$mode --iterations 120 \
			--out autobyte/congestion/weights/$$mode.npz || exit 1; \
	done

mocc: .venv/test
	for script in objectives adaptation tuners ablations links; do \
		$(SAME) $(BIN)/python -W error paper/mocc_$$script.py || exit 1; \
	done
	$(BIN)/python -W error paper/claims.py

record: .venv/test
	$(BIN)/python tests/tuners/test_contract.py
	$(BIN)/python tests/features/test_features.py
	COLUMNS=160 $(BIN)/autobyte compare --model tests/data/small_vgg.json --workers 8 --bandwidth 1Gbit \
		| sed 's/ *$$//' > tests/data/demo.txt

clean:
	rm -rf .venv .venv-mxnet .venv-byteps .venv-horovod build out .pytest_cache .mypy_cache .ruff_cache .hypothesis
