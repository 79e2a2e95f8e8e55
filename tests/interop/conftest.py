"""Fixtures of the suites against the real Apache RocketMQ."""

from __future__ import annotations

from tests.plugins.apache import apache, apache_cluster, java

__all__ = ["apache", "apache_cluster", "java"]
