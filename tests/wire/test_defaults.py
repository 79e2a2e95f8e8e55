"""What is left out counts as nothing, but for what stands here."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType

import pytest

from rocketstream import protocol

# As upstream's classes: TopicConfig, SubscriptionGroupConfig, ConsumeMessageDirectlyResult.
FIELDS: dict[str, object] = {
    "ConsumeMessageDirectlyResult.auto_commit": True,
    "SubscriptionGroupConfig.consume_broadcast_enable": True,
    "SubscriptionGroupConfig.consume_enable": True,
    "SubscriptionGroupConfig.consume_from_min_enable": True,
    "SubscriptionGroupConfig.notify_consumer_ids_changed_enable": True,
    "SubscriptionGroupConfig.retry_max_times": 16,
    "SubscriptionGroupConfig.retry_queue_nums": 1,
    "SubscriptionGroupConfig.which_broker_when_consume_slowly": 1,
    "TopicConfig.perm": 6,
    "TopicConfig.read_queue_nums": 4,
    "TopicConfig.write_queue_nums": 4,
    # A part of a condition is one level, and costs one comparison.
    "Node.height": 1,
    "Node.weight": 1,
}
# Bounds have names of their own and are tested where they bound something.
PARAMETERS: dict[str, object] = {
    "PreparedSend.__init__.code": 310,  # most sends are of one message, as SEND_MESSAGE_V2
    "RemotingCommand.__init__.language": 3,
    "RemotingCommand.__init__.version": 409,
    "TopicRouteData.encode.standard": True,
    "_boolean.weight": 1,
    "check_record.crc": True,
    "compress.level": 5,
}


MODULES = [
    found.name for found in pkgutil.walk_packages(protocol.__path__, "rocketstream.protocol.")
]

Member = type | FunctionType


def members(module: str) -> dict[str, Member]:
    """The classes and functions of a module, by name."""
    return {
        name: member
        for name, member in vars(importlib.import_module(module)).items()
        if isinstance(member, type | FunctionType) and member.__module__ == module
    }


def fields(members: dict[str, Member]) -> Iterator[tuple[str, object]]:
    """The default of every field of a dataclass."""
    for name, member in members.items():
        if isinstance(member, type) and dataclasses.is_dataclass(member):
            for field in dataclasses.fields(member):
                yield f"{name}.{field.name}", field.default


def parameters(members: dict[str, Member]) -> Iterator[tuple[str, object]]:
    """The default of every parameter that is no field of a dataclass."""
    functions = {name: each for name, each in members.items() if isinstance(each, FunctionType)}
    for name, member in members.items():
        for inner, each in vars(member).items() if isinstance(member, type) else ():
            function = getattr(each, "__func__", each)
            is_made = inner == "__init__" and dataclasses.is_dataclass(member)
            if isinstance(function, FunctionType) and not is_made:
                functions[f"{name}.{inner}"] = function
    for place, function in functions.items():
        for each in inspect.signature(function).parameters.values():
            yield f"{place}.{each.name}", each.default


def numbers(defaults: Iterator[tuple[str, object]]) -> dict[str, object]:
    """Those that are a number, or a truth value, other than zero; bounds left out."""
    return {
        name: value
        for name, value in defaults
        if isinstance(value, int | float) and value and not name.endswith("_max")
    }


def told(table: dict[str, object], members: dict[str, Member]) -> dict[str, object]:
    return {name: value for name, value in table.items() if name.partition(".")[0] in members}


@pytest.mark.parametrize("module", MODULES)
def test_a_field_that_is_left_out_is_zero_or_false_but_for_those_of_upstream(module: str) -> None:
    """A message without a field means what it means to Java."""
    here = members(module)
    assert numbers(fields(here)) == told(FIELDS, here)


@pytest.mark.parametrize("module", MODULES)
def test_a_parameter_that_is_left_out_asks_for_nothing_but_what_is_said(module: str) -> None:
    here = members(module)
    assert numbers(parameters(here)) == told(PARAMETERS, here)


def test_what_the_tables_name_is_there() -> None:
    there = {name for module in MODULES for name in members(module)}
    assert {name.partition(".")[0] for name in {**FIELDS, **PARAMETERS}} <= there
