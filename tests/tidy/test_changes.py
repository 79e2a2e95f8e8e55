"""Nothing changes a cluster past the gate, where it is refused or written down."""

from __future__ import annotations

import ast

from rocketstream.admin.wire.looking import AdminWire
from tests.tidy.source import Module, modules, of_each

ADMIN = [module for module in modules() if module.name.startswith("rocketstream.admin")]
CHANGES_ALLOWED = {
    "update_consumer_offset": {"safety"},
    "ChangingWire": {"safety"},
}
"""Where calls that change something may stand."""
CHANGING_CODES = {
    "UPDATE_CONSUMER_OFFSET",
    "UPDATE_AND_CREATE_TOPIC",
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
    "DELETE_TOPIC_IN_BROKER",
    "DELETE_TOPIC_IN_NAMESRV",
    "DELETE_SUBSCRIPTIONGROUP",
    "INVOKE_BROKER_TO_RESET_OFFSET",
    "CONSUME_MESSAGE_DIRECTLY",
    "CLONE_GROUP_OFFSET",
    "UPDATE_BROKER_CONFIG",
    "UPDATE_NAMESRV_CONFIG",
    "PUT_KV_CONFIG",
    "DELETE_KV_CONFIG",
    "WIPE_WRITE_PERM_OF_BROKER",
    "ADD_WRITE_PERM_OF_BROKER",
}


def names_in(module: Module) -> set[str]:
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in module.nodes
        if isinstance(node, (ast.Attribute, ast.Name))
    }


@of_each(ADMIN)
def test_requests_that_change_something_stand_where_the_gate_is(module: Module) -> None:
    used = names_in(module)
    place = module.name.removeprefix("rocketstream.admin.")
    if place != "safety":
        assert not used & CHANGING_CODES
    for name, homes in CHANGES_ALLOWED.items():
        assert name not in used or place in homes


def test_looking_has_no_request_that_changes() -> None:
    asked = {name for name in dir(AdminWire) if not name.startswith("_")}
    assert not {name for name in asked if name.startswith(("put", "delete", "store", "update"))}
