"""What is left out counts as nothing, but for what stands here."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType, ModuleType

from rocketstream import protocol

# As upstream's classes: TopicConfig, SubscriptionGroupConfig, ConsumeMessageDirectlyResult.
FIELDS = {
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
PARAMETERS = {
    "RemotingCommand.__init__.language": 3,
    "RemotingCommand.__init__.version": 409,
    "TopicRouteData.encode.standard": True,
    "_boolean.weight": 1,
    "check_record.crc": True,
    "compress.level": 5,
}


def members() -> Iterator[tuple[str, type | FunctionType]]:
    """Every class and function of the package, by name."""
    for found in pkgutil.walk_packages(protocol.__path__, f"{protocol.__name__}."):
        module: ModuleType = importlib.import_module(found.name)
        for name, member in vars(module).items():
            is_one = isinstance(member, type | FunctionType)
            if is_one and member.__module__ == module.__name__:
                yield name, member


def parameters() -> Iterator[tuple[str, object]]:
    """The default of every parameter that is no field of a dataclass."""
    for name, member in members():
        functions = {name: member} if isinstance(member, FunctionType) else {}
        if isinstance(member, type):
            for inner, each in vars(member).items():
                function = getattr(each, "__func__", each)
                is_made = inner == "__init__" and dataclasses.is_dataclass(member)
                if isinstance(function, FunctionType) and not is_made:
                    functions[f"{name}.{inner}"] = function
        for place, function in functions.items():
            for each in inspect.signature(function).parameters.values():
                yield f"{place}.{each.name}", each.default


def numbers(defaults: Iterator[tuple[str, object]]) -> dict[str, object]:
    return {
        name: value
        for name, value in defaults
        if isinstance(value, int | float) and value and not name.endswith("_max")
    }


def test_a_field_that_is_left_out_is_zero_or_false_but_for_those_of_upstream() -> None:
    """A message without a field means what it means to Java."""
    fields = (
        (f"{name}.{field.name}", field.default)
        for name, member in members()
        if isinstance(member, type) and dataclasses.is_dataclass(member)
        for field in dataclasses.fields(member)
    )
    assert numbers(fields) == FIELDS


def test_a_parameter_that_is_left_out_asks_for_nothing_but_what_is_said() -> None:
    assert numbers(parameters()) == PARAMETERS
