"""The pages of the site that show the public names, made of their docstrings by mkdocstrings.

They stand on the site alone: in the repository the docstrings are in the source. Each package says
by itself what is public; a name it has not is on no page.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cached_property
from typing import Any

MODULES = {
    "rocketstream": "clients, messages and what belongs to them, for threads.",
    "rocketstream.aio": "the clients for asyncio: the same names, settings and errors, awaited.",
    "rocketstream.errors": "every error, one tree; programs match on the class or on `condition`.",
    "rocketstream.admin": "operations on a cluster; `rocketstream.admin.aio.Admin` awaits them.",
    "rocketstream.spark": "what a Spark program calls besides `format('rocketmq')`.",
    "rocketstream.server.embedded": "name server and broker in this process.",
    "rocketstream.frameworks.faststream": "a broker for FastStream.",
    "rocketstream.frameworks.taskiq": "a broker for Taskiq.",
    "rocketstream.otel": "OpenTelemetry's spans and metrics of clients.",
    "rocketstream.testing": "tools for tests; the fixture `rocketmq_cluster` comes by itself.",
    "rocketstream.testing.sim.simulate": "a listener of your own, taken through crashes.",
    "rocketstream.testing.history": "what a run did, and what it broke of the promises.",
    "rocketstream.testing.history.events": "what a history is made of.",
    "rocketstream.watch": "one collection of a cluster's state for any number of readers.",
}
"""The modules that have a page, and what the page begins with."""

BESIDE = {
    "rocketstream.server.embedded": [
        "rocketstream.server.store.RetentionConfig",
        "rocketstream.server.store.StoreConfig",
    ],
}
"""Names of other modules that a module's calls take, and that have no page of their own."""


def page_of(module: str) -> str:
    """Return the path of a module's page on the site."""
    return f"api/{module}.md"


PAGES = [page_of(module) for module in MODULES]


def public(module: str) -> list[str]:
    """Return the dotted names of what a module offers, and of the services of ``Admin``."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name for name in dir(loaded) if not name.startswith("_") and _is_ours(loaded, name)
    ]
    shown = [f"{module}.{name}" for name in sorted(names) if not name.startswith("_")]
    if module == "rocketstream.admin":
        shown[:0] = _services(loaded.Admin)
        shown.remove(f"{module}.Admin")
        shown.insert(0, f"{module}.Admin")
    return shown + BESIDE.get(module, [])


def _is_ours(module: Any, name: str) -> bool:
    value = getattr(module, name)
    kind = inspect.isclass(value) or inspect.isfunction(value)
    return kind and value.__module__.startswith(module.__name__)


def _services(admin: type[Any]) -> list[str]:
    """Return the classes behind the properties of ``Admin``: ``admin.groups`` is a ``Groups``."""
    properties = [each for each in vars(admin).values() if isinstance(each, cached_property)]
    kinds = [each.func.__annotations__["return"] for each in properties]
    return [f"{admin.__module__}.{kind}" for kind in kinds]


def text_of(module: str) -> str:
    """Return the Markdown of a module's page."""
    style = "numpy" if module == "rocketstream.spark" else "google"
    inherited = "false" if module == "rocketstream.errors" else "true"  # else ``message`` each time
    options = f"    options: {{docstring_style: {style}, inherited_members: {inherited}}}\n"
    shown = "\n".join(f"::: {name}\n{options}" for name in public(module))
    return f"# {module}\n\n`{module}`: {MODULES[module]}\n\n{shown}"
