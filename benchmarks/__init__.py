"""Measurements, reported and not asserted: `python -m benchmarks cost` and others; see `--help`."""
