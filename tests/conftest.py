"""Plugins of the whole suite.

Law: names plugins only; fixtures live in them or next to their tests.
"""

pytest_plugins = [
    "tests.plugins.collected",
    "tests.plugins.environment",
    "tests.plugins.hangs",
    "tests.plugins.kept",
    "tests.plugins.lacking",
    "tests.plugins.leaks",
    "tests.plugins.parts",
    "tests.plugins.workers",
]
