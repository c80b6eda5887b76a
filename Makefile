# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SECONDS = 300
SEED   ?= 0
FAULTS ?= 1000
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-cluster fuzz faults lint docs bench clean

$(VENV)/demo.done: pyproject.toml requirements/torch.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing shardmill into $(VENV) ..."
	@$(PIP) -r requirements/torch.txt -e '.[all]'
	@touch $@

$(VENV)/test.done: pyproject.toml $(wildcard requirements/*)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing shardmill and the packages that its tests compare it with ..."
	@$(PIP) -r requirements/torch.txt
	@$(PIP) -c requirements/torch.txt -r requirements/test.txt -e '.[all]'
	@$(PIP) --no-deps torchvision==0.28.0
	@requirements/install-debian.sh
	@touch $@

demo: $(VENV)/demo.done  ## install, then run the whole pipeline on the embedded data
	@$(BIN)/python demo/run.py .demo

test: $(VENV)/test.done  ## install, then run all tests
	@$(BIN)/python -m pytest $(ARGS)

test-cluster: $(VENV)/test.done  ## the long runs on real schedulers, stores and faults
	@HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m cluster $(ARGS)
	@HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest $$(grep -rl --include='test_*.py' 'from hypothesis' tests) $(ARGS)

fuzz: $(VENV)/test.done  ## broken input for every reader, for SECONDS=300 from SEED=0
	@HF_HUB_OFFLINE=1 $(BIN)/python tests/fuzz/fuzz.py --seconds $(SECONDS) --seed $(SEED) $(ARGS)

faults: $(VENV)/test.done  ## kill and disturb real runs FAULTS=1000 times, and write docs/faults.md
	@rm -f docs/faults.md
	@SHARDMILL_FAULTS=$(FAULTS) SHARDMILL_SEED=$(SEED) SHARDMILL_FAULTS_PAGE=docs/faults.md \
		$(BIN)/python -m pytest -m cluster tests/running/test_chaos.py $(ARGS)

lint: $(VENV)/test.done  ## format, style, types and layers
	@$(BIN)/ruff format --check src tests benchmarks demo examples
	@$(BIN)/ruff check src tests benchmarks demo examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/test.done  ## build the site into .site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open .site/index.html"

bench: $(VENV)/test.done  ## run the benchmarks that need no GPU and write benchmarks/results/
	@for program in benchmarks/[a-z]*.py; do grep -q 'save_report(__file__' $$program && $(BIN)/python $$program; done

clean:
	rm -rf .demo .site .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz
