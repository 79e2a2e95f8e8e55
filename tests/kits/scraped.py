"""Metrics, read back by Prometheus' own library."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
Scraped = dict[str, dict[Labels, float]]


def labels(**values: str) -> Labels:
    """Return labels as the keys of ``read`` have them."""
    return tuple(sorted(values.items()))


def read(text: str) -> Scraped:
    """Return the samples by name and labels; a sample that is there twice is an error."""
    found: Scraped = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            of_name = found.setdefault(sample.name, {})
            key = labels(**sample.labels)
            assert key not in of_name, (sample.name, key)
            of_name[key] = sample.value
    return found
