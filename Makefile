# Short names for what is done often. Each line can be typed by itself; nothing else needs make.

.PHONY: test check demo clean

test:
	tests/run

check:
	.ci/run

demo:
	python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/pylogbroker demo

clean:
	rm -rf build dist *.egg-info .venv .mypy_cache .ruff_cache .import_linter_cache .coverage* htmlcov _trial_temp*
