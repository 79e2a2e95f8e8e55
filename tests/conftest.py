"""Plugins of the whole suite.

Law: names plugins only; fixtures live in them or next to their tests.
"""

pytest_plugins = [
    "tests.plugins.kept",  # others import it
    "tests.plugins.apache",
    "tests.plugins.clusters",
    "tests.plugins.collected",
    "tests.plugins.commands",
    "tests.plugins.environment",
    "tests.plugins.examples",
    "tests.plugins.hangs",
    "tests.plugins.lacking",
    "tests.plugins.leaks",
    "tests.plugins.parts",
    "tests.plugins.peers",
    "tests.plugins.queries",
    "tests.plugins.spark",
    "tests.plugins.workers",
]
