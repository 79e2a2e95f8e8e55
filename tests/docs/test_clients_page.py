"""The page on what clients have in common names every setting and variable there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from rocketstream import ClientConfig
from rocketstream.client import config, credentials

PAGE = (Path(__file__).resolve().parents[2] / "docs/clients.md").read_text(encoding="utf-8")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_setting_is_listed_and_nothing_else() -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == {each.name for each in fields(ClientConfig)}


def test_every_variable_is_listed() -> None:
    named = vars(config) | vars(credentials)
    variables = {value for name, value in named.items() if name.endswith("_VARIABLE")}
    assert set(re.findall(r"\b(?:NAMESRV_ADDR|ROCKETMQ_[A-Z_]+)\b", PAGE)) == variables


def test_the_example_can_be_run() -> None:
    (code,) = CODE.findall(PAGE)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - our own page
    assert isinstance(names["config"], ClientConfig)
