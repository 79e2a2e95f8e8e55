"""Where a listener failed is told as a place in its own code."""

from __future__ import annotations

import json

from rocketstream.client.consumer.consume.failure_cause import where_raised


def listen(body: str) -> None:
    json.loads(body)


def test_the_place_is_in_the_users_code_though_pythons_own_raised() -> None:
    try:
        listen("{")
    except json.JSONDecodeError as error:
        where = where_raised(error)
    assert where is not None
    assert where.startswith("tests/retry/test_blame.py:")
    assert where.endswith(" listen")
