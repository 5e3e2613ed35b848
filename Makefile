# Two commands do everything: `make run` and `make test`. See README.md.

PYTHON ?= python3
VENV   := .venv
KAFKA  := .tools/kafka
CONNECTOR := .tools/spark-kafka
BIN    := $(VENV)/bin

BACKING ?= ./data
MOUNT   ?= ./mnt

.PHONY: setup jars run test soak soak-spark torture crash-states fuzz conformance matrix cluster bench bench-kafka lint man clean

setup: $(VENV)/.ready

$(VENV)/.installed: pyproject.toml .ci/packages
	.ci/packages venv fuse
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[test,spark,sql,ui]'
	mkdir -p build/types/topicfs
	ln -sfn ../../../engine build/types/topicfs/engine
	ln -sfn ../../../fs build/types/topicfs/fs
	ln -sfn ../../../mountd build/types/topicfs/mountd
	ln -sf ../../../engine/public/__init__.py ../../../engine/public/loaded.py ../../../engine/public/spark.py build/types/topicfs/
	touch $@

# The kernels are compiled here, so that nobody's first read waits for the compiler. So are the modules: where
# PYTHONDONTWRITEBYTECODE is set, as in many images, each command would compile them anew, in 120 ms.
$(VENV)/.ready: $(VENV)/.installed
	$(BIN)/python -m compileall -q engine fs mountd
	$(BIN)/python -m topicfs.mountd.kernels
	touch $@

run: setup
	@exec env PATH="$(abspath $(BIN)):$$PATH" BACKING="$(BACKING)" MOUNT="$(MOUNT)" examples/try.sh

# The real Kafka, which the interoperability tests compare with: its jars, and a Java to run them.
$(KAFKA)/.ready: tests/interop/pom.xml .ci/packages
	.ci/packages java maven
	mvn -q -f tests/interop/pom.xml dependency:copy-dependencies
	touch $@

# Spark's Kafka source and sink, which the data source is compared with. Two Mavens at a time may spoil each other's files.
$(CONNECTOR)/.ready: tests/spark/pom.xml .ci/packages | $(KAFKA)/.ready
	.ci/packages java maven
	mvn -q -f tests/spark/pom.xml dependency:copy-dependencies
	touch $@

jars: $(KAFKA)/.ready $(CONNECTOR)/.ready

# In random order, and as many at a time that the processors have something to do while a test waits. Tests that are
# about time must hold on a busy machine too: they get one. Both parts are run, whatever comes of the first.
WORKERS ?= 4
PYTEST   = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder $(PYTEST_OPTIONS)
# What looks for longer may take as long as it likes.
ifeq ($(HYPOTHESIS_PROFILE),thorough)
PYTEST  += -o faulthandler_timeout=0
endif
# Only the files that have one: to load the others takes each process 1.4 s of a processor.
BUSY     = $(shell grep -rl --include='test_*.py' 'pytest\.mark\.busy' tests/mount tests/mountd)

ifdef TESTS
test: setup jars
	.ci/packages tools browser
	.ci/memory $(PYTEST) $(TESTS)
else
test: setup jars
	.ci/packages tools browser
	code=0; .ci/memory $(PYTEST) -m 'not busy' tests || code=1; .ci/busy $(PYTEST) -m busy $(BUSY) || code=1; exit $$code
endif

# As in `make test`, but for ten minutes. What tests may take in all (pyproject.toml) is counted behind them.
soak soak-spark: SOAK_SECONDS ?= 600
soak: setup
	.ci/packages tools
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -o faulthandler_timeout=$$(($(SOAK_SECONDS) + 400)) tests/soak

# Spark's pipelines over a mount, killed again and again. The first line tells the seed: SOAK_SEED repeats it.
soak-spark: setup
	.ci/packages java
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest --capture=no -o faulthandler_timeout=$$(($(SOAK_SECONDS) + 1800)) tests/spark/pipelines.py

# Workloads, upkeep and faults at random, until the time is over or a promise is broken. The first line tells the seed.
MINUTES ?= 10
torture: setup
	[ "$$(id -u)" != 0 ] || .ci/packages xfs
	$(BIN)/python tests/torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(TORTURE_OPTIONS)

# What a death of the process or a loss of power may leave behind each short sequence of operations, recovered and compared
# with what was promised, until the time is over. The first line tells the seed: with it and ONLY a sequence is done again.
crash-states: setup
	$(BIN)/python tests/crash_states --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)')

# Bytes that nobody should take, looked for in what reads them: MINUTES for all of tests/fuzz/fuzz_targets.py together, or
# for one TARGET. What it has kept in build/fuzz is where the next search begins; with KEEP=1 the best goes into tests/fuzz.
fuzz: setup
	$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install --quiet --editable '.[fuzz]'
	$(BIN)/python tests/fuzz --minutes $(MINUTES) $(TARGET)

# Suites that others have written for file systems, wherever a mount offers ordinary files: pjdfstest, fsx, fio and stress-ng,
# or some of them as SUITES. The lists in tests/conformance have what is expected not to pass, with reasons.
CONFORMANCE := .tools/conformance
$(CONFORMANCE)/.ready: .ci/packages
	.ci/packages cargo
	cargo install --quiet --locked --root $(CONFORMANCE) pjdfstest@0.2.2 fsx@0.3.2
	touch $@

conformance: setup $(CONFORMANCE)/.ready
	.ci/packages tools
	$(BIN)/python tests/conformance $(if $(SEED),--seed $(SEED)) $(SUITES)

# The versions of Spark, Python, pandas and pyarrow that are supported, each in an environment of its own.
matrix: setup
	.ci/packages java
	$(BIN)/python tests/spark/matrix.py

# The recipe of engine/spark/CLUSTER.md, on workers whose Python has nothing but what the recipe brings.
cluster: setup
	.ci/packages java
	$(BIN)/python tests/spark/cluster.py "$$($(BIN)/python -c 'import sys; print(sys._base_executable)')"

bench: setup
	$(BIN)/python tests/bench $(ROWS)

# Beside Kafka's own tools and kcat. SCALE=0.1 has a tenth of the records.
bench-kafka: setup jars
	.ci/packages tools kcat
	PYTHONPATH=tests/bench:tests/mount:tests/interop $(BIN)/python tests/bench/beside_kafka $(ROWS)

# It needs no kernels: with `make -j` they are compiled meanwhile.
lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The manual page, which is kept beside the help that it is made of: a wheel has it too.
man: $(VENV)/.installed
	$(BIN)/python -m topicfs.mountd.manual

clean:
	rm -rf $(VENV) .tools build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
