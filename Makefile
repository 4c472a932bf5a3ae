# make demo: the main job on the embedded data set.  make test: lint, types and tests.  make test-fast: the quick tests, no browser
# and no training, in a minute or so.  All set up .venv by themselves.
# make bench: speed beside programs that do the same, 15 minutes.  make bench-long DATA=DIR: also the time to accuracy on
# CIFAR-100, and how cost grows.  Nothing else should run meanwhile.  make coverage: the tests, and which lines they miss.
PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Two test processes of one thread each: threads of two processes would wait for each other.
.PHONY: demo test test-fast coverage lint bench bench-long clean

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

bench-long: .venv/demo.stamp
	.venv/bin/python benchmarks/speed.py --long $(if $(DATA),--data $(DATA))
	.venv/bin/python benchmarks/scaling.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

.venv/test.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev,pretrained,serve,export,heic,tensorboard]'
	touch $@ .venv/demo.stamp

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage runs
