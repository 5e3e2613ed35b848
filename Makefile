# Two commands do everything: `make run` and `make test`. See README.md.

PYTHON ?= python3
VENV   := .venv
KAFKA  := .tools/kafka
BIN    := $(VENV)/bin

BACKING ?= ./data
MOUNT   ?= ./mnt

.PHONY: setup run test soak bench lint clean

setup: $(VENV)/.ready

# The kernels are compiled here, so that nobody's first read waits for the compiler.
$(VENV)/.ready: pyproject.toml .ci/packages
	.ci/packages venv fuse
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[test,spark]'
	$(BIN)/python -m mountd.kernels
	touch $@

run: setup
	@exec env PATH="$(abspath $(BIN)):$$PATH" BACKING="$(BACKING)" MOUNT="$(MOUNT)" examples/try.sh

# The real Kafka, which the interoperability tests compare with: its jars, and a Java to run them.
$(KAFKA)/.ready: tests/interop/pom.xml .ci/packages
	.ci/packages java maven
	mvn -q -f tests/interop/pom.xml dependency:copy-dependencies
	touch $@

test: setup $(KAFKA)/.ready
	.ci/packages tools
	$(BIN)/python -m pytest $(TESTS)

# As in `make test`, but for ten minutes.
soak: setup
	.ci/packages tools
	SOAK_SECONDS=$${SOAK_SECONDS:-600} $(BIN)/python -m pytest tests/soak

bench: setup
	$(BIN)/python tests/bench

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .tools build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
