"""Settings of the property tests: the same examples on every run, no time limits per example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("protocol", derandomize=True, deadline=None, database=None)
settings.load_profile("protocol")
