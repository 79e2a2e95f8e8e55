"""What mkdocstrings takes a method for that the client makes of another one: a method.

``pull = blocking(AsyncPullConsumer.pull)`` is an attribute to whoever only reads the source.
"""

from __future__ import annotations

from typing import Any

import griffe

DERIVED = {"asked", "blocking", "starting"}
"""The functions of the client that make a method of another one, by what they are called."""


class DerivedMethods(griffe.Extension):
    """Shows ``pull = blocking(AsyncPullConsumer.pull)`` as the method it is."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Put a function in the place of each attribute that is derived from one."""
        for kind in _classes(pkg):
            for name, member in list(kind.members.items()):
                source = _source(loader, member)
                if source is not None:
                    method = griffe.Function(
                        name,
                        parameters=source.parameters,
                        returns=source.returns,
                        docstring=source.docstring,
                    )
                    kind.set_member(name, method)


def _classes(module: griffe.Module) -> list[griffe.Class]:
    found = []
    for member in module.members.values():
        if not member.is_alias and member.is_module:
            found += _classes(member)  # type: ignore[arg-type]
        elif not member.is_alias and member.is_class:
            found.append(member)
    return found  # type: ignore[return-value]


def _source(loader: griffe.GriffeLoader, member: Any) -> Any:
    """Return the method that a member is derived from; None where it is not derived."""
    value = member.value if member.is_attribute else None
    if not isinstance(value, griffe.ExprCall) or str(value.function) not in DERIVED:
        return None
    owner, _, name = value.arguments[0].canonical_path.rpartition(".")  # type: ignore[union-attr]
    found: Any = loader.modules_collection[owner].all_members[name]
    found = found.final_target if found.is_alias else found
    return found if found.is_function else _source(loader, found)
