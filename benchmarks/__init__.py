"""Measurements, each next to its peer in the same run; `python -m benchmarks --help`."""
