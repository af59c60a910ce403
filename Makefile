# Thin: every recipe is one command over the project's own environment in .venv.
PYTHON ?= python3
GRPC_TOOLS_VERSION := 1.62.3
BIN := .venv/bin
UV := $(BIN)/uv
STUBS := latfarm_protos/v1/agent.proto latfarm_protos/v1/controller.proto latfarm_protos/v1/database.proto

# pip reads its find-links from its own setting; uv reads only this one.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
endif

# Where the system keeps certificates, uv trusts them like other programs, those of a company's proxy too.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= true
endif

.PHONY: help
help: ## list the targets, in groups
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {n = split($$2, words, " "); line = sprintf("  %-22s", $$1); \
	    for (i = 1; i <= n; i++) {if (length(line) + length(words[i]) >= 80) {print line; line = sprintf("%24s", "")} \
	    line = line " " words[i]} print line}' $(MAKEFILE_LIST)

.DEFAULT:
	@echo "there is no target '$@'; make help lists all of them" >&2; exit 2

##@ Set-up
.PHONY: setup setup-farm setup-docs setup-gnn clean

setup: .venv/.ready ## make .venv with the tested versions of everything

.venv/.ready: constraints.txt constraints-uv.txt pyproject.toml protos/pyproject.toml predictors/pyproject.toml agent/pyproject.toml controller/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "latfarm needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r constraints-uv.txt
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r constraints.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps -e protos -e predictors -e agent -e controller
	@touch $@

setup-farm: .venv/.farm-ready ## Ansible, its linter and Grafana's SDK, into .venv

.venv/.farm-ready: .venv/.ready constraints-farm.txt
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r constraints-farm.txt
	@touch $@

setup-docs: .venv/.docs-ready ## mkdocs and its plugins, into .venv

.venv/.docs-ready: .venv/.ready constraints-docs.txt
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r constraints-docs.txt
	@touch $@

setup-gnn: .venv/.gnn-ready ## torch and torch_geometric, into .venv; TORCH_FLAGS=--torch-backend=cpu for a small torch

TORCH_FLAGS ?=

.venv/.gnn-ready: .venv/.ready constraints-gnn.txt
	@$(UV) pip install --quiet --python $(BIN)/python $(TORCH_FLAGS) --constraints constraints.txt -r constraints-gnn.txt
	@touch $@

clean: ## remove what the targets made
	@rm -rf dist site .venv .venvs .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache

##@ Everyday
.PHONY: demo check format docs docs-screenshots protos check-protos constraints sample-bundle wheels

demo: setup ## characterise this machine and predict networks that it has never seen; ten minutes at most
	@$(BIN)/latfarm demo $(DEMO_FLAGS)

check: setup-farm check-protos docs ## format, lint, types, import contracts, spelling, stubs, playbooks, site
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy protos predictors agent controller tests benchmarks $(wildcard examples/*.py)
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/vermin --quiet --no-tips --violations -t=3.8- agent/latfarm_agent protos/latfarm_protos
	@PATH="$$PWD/$(BIN):$$PATH" $(BIN)/ansible-lint --profile production --offline -q ansible

format: setup ## rewrite the tree as `make check` wants it
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup-docs ## build the documentation site into site/ without any network; fail on a broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-screenshots: setup-farm ## draw the monitoring page's pictures with Grafana's panels; needs node, npm, Chromium
	@LATFARM_FARM=required LATFARM_PICTURES=.cache/panels $(BIN)/python -m pytest -q -n 0 -m farm tests/farm/test_monitoring.py -k "fires_and_each or grafana"
	@mkdir -p site/images/monitoring
	@cp .cache/panels/*.svg docs/images/monitoring/
	@cp .cache/panels/*.png site/images/monitoring/

.venvs/protos/.ready:
	@$(PYTHON) -m venv .venvs/protos
	@.venvs/protos/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==$(GRPC_TOOLS_VERSION) 'setuptools<81'
	@touch $@

protos: .venvs/protos/.ready ## write the stubs anew with the pinned generator
	@cd protos && ../.venvs/protos/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $(STUBS)

check-protos: .venvs/protos/.ready ## fail if the checked-in stubs differ from the generated ones
	@rm -rf .cache/stubs && mkdir -p .cache/stubs
	@cd protos && ../.venvs/protos/bin/python -m grpc_tools.protoc -I. --python_out=../.cache/stubs --pyi_out=../.cache/stubs --grpc_python_out=../.cache/stubs $(STUBS)
	@for f in $$(cd .cache/stubs && find . -name '*_pb2*'); do diff -q ".cache/stubs/$$f" "protos/$$f" || { echo "stubs are stale: make protos"; exit 1; }; done

sample-bundle: setup ## make the sample bundle again: characterise a simulated board, and judge the result
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.sample.make $(SAMPLE_FLAGS)

wheels: setup ## the four distributions as wheels in dist/; install them with: pip install dist/*.whl
	@for folder in protos predictors agent controller; do \
	  $(UV) build --quiet --wheel --out-dir dist $$folder || exit 1; \
	done
	@ls dist/*.whl

constraints: setup ## resolve the newest versions anew (no index address is recorded)
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --group dev protos/pyproject.toml predictors/pyproject.toml agent/pyproject.toml controller/pyproject.toml \
	  --extra fit --extra onnxruntime --extra tflite --extra openvino --extra mnn --extra ncnn --extra vela --no-emit-package latfarm-protos --no-emit-package latfarm-predictors \
	  --no-emit-package latfarm-agent --no-emit-package latfarm-controller --upgrade -o constraints.txt
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --group farm --constraints constraints.txt --upgrade -o constraints-farm.txt
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --group docs --constraints constraints.txt --constraints constraints-farm.txt --upgrade -o constraints-docs.txt
	@echo uv | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --upgrade -o constraints-uv.txt -

##@ Tests
.PHONY: test-fast test test-delays test-database-damage test-database-kills test-farm test-farm-all test-ray-faults test-pythons fuzz fuzz-ports fuzz-trust test-faults

# Folders of code that only computes; tests marked slow are left out.
FAST := $(addprefix tests/predictors/,graph kernels features models learned confidence trust) \
  tests/agent/session tests/controller/farm/scheduling tests/controller/campaigns

test-fast: setup ## the pure cores, in under a minute: no process, no network, no runtime
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not farm and not faults" $(FAST) $(TEST_FLAGS)

test: setup ## all tests that need no root and no board
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup $(TEST_FLAGS)

test-delays: setup ## all tests of make test, with random delays of threads, event loops and processes
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.random_delays -n 5 --dist loadgroup --timeout 900 $(TEST_FLAGS)

FARM_PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --timeout 900 --durations 15 tests/farm

test-farm: setup-farm ## each playbook, the measuring chain and a phone once, on virtual boards; as root
	@$(BIN)/python -m tests.farm.prepare --install
	@$(FARM_PYTEST) -m "farm and gate" $(TEST_FLAGS)

test-farm-all: setup-farm ## all tests on virtual boards; as root, planned for 40 minutes on two quiet cores
	@$(BIN)/python -m tests.farm.prepare --install --all
	@$(FARM_PYTEST) -m farm $(TEST_FLAGS)

test-faults: setup ## 200 seeded runs of small farms with faults, half of them on Ray; an hour at most
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.faults.run --json .cache/faults.json $(FAULT_FLAGS)

test-ray-faults: setup ## campaigns while GCS, raylets, shards and builders are killed; some minutes
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m faults tests/controller/farm/processes $(TEST_FLAGS)

test-database-kills: setup ## kill -9 of the serving process, 50 times under queries, writes, imports and promotions; some minutes
	@LATFARM_DATABASE_KILLS=50 $(BIN)/python -m pytest -n 0 tests/controller/api/test_database_kills.py $(TEST_FLAGS)

test-database-damage: setup ## the write-ahead log of a store, cut or damaged at hundreds of places; some minutes
	@LATFARM_DAMAGED_PLACES=300 $(BIN)/python -m pytest -n 0 --timeout 3600 tests/controller/store/upkeep/test_log_damage.py $(TEST_FLAGS)

PYTHONS ?= python3.8 python3.9 python3.10 python3.12 python3.13

test-pythons: ## the agent and its conformance suite under each of PYTHONS, as far as they are here
	@for python in $(PYTHONS); do \
	  folder=.venvs/agent-$$(basename $$python); \
	  command -v $$python >/dev/null || { echo "$$python: not here, skipped"; continue; }; \
	  test -x $$folder/bin/python || $$python -m venv $$folder || exit 1; \
	  $$folder/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-timeout hypothesis ./protos "./agent[onnxruntime]" || exit 1; \
	  echo "$$python"; \
	  OMP_NUM_THREADS=1 $$folder/bin/python -m pytest -q -p no:cacheprovider tests/agent/runtimes/test_conformance.py tests/agent/board tests/agent/files tests/agent/link tests/agent/rack tests/agent/service tests/agent/session || exit 1; \
	done

fuzz: setup ## 5,000 damaged ONNX files and 5,000 damaged TFLite files
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzzing.models $(BENCH_FLAGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzzing.tflite $(BENCH_FLAGS)

fuzz-ports: setup ## 100,000 malformed frames and messages at the agent's and the controller's ports
	@$(BIN)/python -m benchmarks.fuzzing.ports --write benchmarks/fuzz_ports.json $(BENCH_FLAGS)

fuzz-trust: setup ## what comes from outside, damaged: 100,000 answers of boards, 20,000 models, 20,000 bundles
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzzing.trust --write benchmarks/fuzz_trust.json $(BENCH_FLAGS)

##@ Benchmarks: each writes or prints the figures that the documentation quotes
.PHONY: bench-budget bench-coverage bench-demo bench-energy bench-engines bench-farm bench-fusion bench-gnn bench-gnn-measure bench-gnn-transfer bench-graphs bench-nas bench-networks bench-padding bench-query bench-sampling bench-sampling-fresh bench-hashes bench-speed bench-idle bench-pool bench-predict bench-profile-sums bench-repeatability bench-regressors bench-scheduler bench-confinement bench-slow-core bench-work-stream bench-new-board bench-startup bench-models

bench-budget: setup ## accuracy against all measurements and against board minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.budget.curves $(BENCH_FLAGS)

bench-coverage: setup ## do 90 % intervals of networks hold 90 %? beside the paper's; real data, too
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.coverage --write $(or $(BENCH_FLAGS),--offline --simulate npu --simulate gpu --simulate cpu --simulate drawn)

bench-confinement: setup ## does the confinement of workers change latencies? a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.agent.confinement --write benchmarks/confinement.json $(BENCH_FLAGS)

bench-demo: setup ## the demo without its limit of time, with its figures; a quiet machine, please
	@$(BIN)/latfarm demo --minutes 0 --figures benchmarks/demo.json $(DEMO_FLAGS)

bench-energy: setup ## energies of unseen networks on a simulated board whose truth is known
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.energy $(BENCH_FLAGS)

bench-engines: setup ## MNN's four networks on every runtime and thread count; a quiet machine, please
	@$(BIN)/python -m benchmarks.engines $(BENCH_FLAGS)

bench-farm: setup ## how busy a controller keeps 8 to 1,000 boards, and what it costs; a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.farm.run $(or $(BENCH_FLAGS),--write benchmarks/farm.json)

bench-fusion: setup ## fused pairs told from times alone, on simulated boards and this host's runtimes
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fusion $(or $(BENCH_FLAGS),--write)

bench-gnn: setup-gnn ## NNLP and others with a family left out, and on NNLQP's inferred cells; continues where it stopped
	@$(BIN)/python -m benchmarks.gnn.run $(or $(BENCH_FLAGS),--write benchmarks/gnn/figures)
	@$(if $(BENCH_FLAGS),,$(BIN)/python -m benchmarks.gnn.transfer --write benchmarks/gnn/figures_of_transfer)

bench-gnn-measure: setup ## the networks of bench-gnn on a real platform, an hour each; continues where it stopped; a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gnn.measure $(BENCH_FLAGS)

bench-gnn-transfer: setup-gnn ## NNLP on families, boards and kernels that it has not seen before; continues where it stopped
	@$(BIN)/python -m benchmarks.gnn.transfer $(or $(BENCH_FLAGS),--write benchmarks/gnn/figures_of_transfer)

bench-graphs: setup ## every network in every runtime: does it run, does it compute the same?
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.graphs --write $(BENCH_FLAGS)

bench-nas: setup ## 10,000 candidates in one call: speed, memory, and their ranking beside FLOPs; a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.nas.bench $(or $(BENCH_FLAGS),--write benchmarks/nas/nas.json)

bench-networks: setup ## networks that a predictor has never seen, beside every baseline, and coverage
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.networks --write $(or $(BENCH_FLAGS),--simulate npu --simulate gpu --simulate cpu --simulate drawn)

bench-new-board: setup ## new boards from few probes: ncnn's boards and NASBench-201's devices
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.new_board.bench $(or $(BENCH_FLAGS),--write benchmarks/new_board/new_board.json)

bench-padding: setup ## errors from single-layer, padded and profiled kernel times, as a table of the paper's
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.padding $(or $(BENCH_FLAGS),--write --simulate npu)

bench-query: setup ## hits on a store of 1,000,000 rows, and misses; continues where it stopped; a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.query.bench $(or $(BENCH_FLAGS),--home .cache/bench-query --write benchmarks/query/query.json)

bench-sampling: setup ## samplers x regressors on real convolution timings
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sampling.offline --write $(BENCH_FLAGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sampling.boards --write
	@$(MAKE) --no-print-directory bench-sampling-fresh

bench-sampling-fresh: setup ## the same on fresh measurements of three runtimes; a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sampling.fresh --write $(FRESH_FLAGS)

bench-hashes: setup ## no two of 100,000 variants share a hash
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/hash_collisions.py $(BENCH_FLAGS)

bench-speed: setup ## how many graphs a second the zoo makes; reading, hashing, building of models
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/zoo_speed.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/graph_speed.py

bench-startup: setup ## how long commands take from start to end; a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.startup.commands $(or $(BENCH_FLAGS),--write benchmarks/startup/startup.json)

bench-idle: setup ## what an agent that has nothing to do takes: memory and processor
	@$(BIN)/python -m benchmarks.idle --write benchmarks/idle.json $(BENCH_FLAGS)

bench-models: setup .venvs/models/.ready ## exports of torch, timm and transformers: are they read and predicted? continues where it stopped
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.models.run $(or $(BENCH_FLAGS),--write benchmarks/models/models.json)

# Gigabytes, and no part of the tests. TORCH chooses a build, such as one without CUDA, or is the path of a wheel.
TORCH ?= torch

.venvs/models/.ready: benchmarks/models/requirements.txt
	@$(UV) venv --quiet --clear --python $(BIN)/python .venvs/models
	@$(UV) pip install --quiet --python .venvs/models/bin/python '$(TORCH)' -r $<
	@touch $@

bench-pool: setup ## speed-up of a campaign on 1, 2, 4 and 8 simulated boards
	@$(BIN)/python -m benchmarks.pool $(BENCH_FLAGS)

bench-predict: setup ## how many networks a second a core predicts, and how long one takes
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/predict_speed.py --write benchmarks/predict_speed.json $(BENCH_FLAGS)

bench-profile-sums: setup ## do the layers of a profile add up to a run? a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.repeating.profile_sums $(or $(BENCH_FLAGS),--write benchmarks/repeating/profile_sums.json)

bench-repeatability: setup ## how well a measurement repeats on this host
	@$(BIN)/python -m benchmarks.repeating.repeatability $(BENCH_FLAGS)

bench-slow-core: setup ## what the correction for a slow core repairs; a quiet machine, please
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.repeating.slow_core $(or $(BENCH_FLAGS),--write)

bench-regressors: setup ## accuracy of the regressors against the number of measurements
	@$(BIN)/python benchmarks/regressors.py $(BENCH_FLAGS)

bench-scheduler: setup ## what the scheduler costs for each measurement, on 8 to 1,000 boards
	@$(BIN)/python -m benchmarks.scheduler $(BENCH_FLAGS)

bench-work-stream: setup ## processor time of a measurement by plain calls and on one stream; a quiet machine, please
	@$(BIN)/python -m benchmarks.work_stream $(or $(BENCH_FLAGS),--write benchmarks/work_stream.json)
