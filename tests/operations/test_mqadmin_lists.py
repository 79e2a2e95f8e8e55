"""The commands our page maps are those mqadmin has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.mqadmin_commands import OF_4_9, OF_5_5
from tests.kits.apache.jvm import SMALL_JVM, Jvm
from tests.kits.apache.referee import JAVA_OPENS, Referee

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


def test_the_page_maps_what_mqadmin_lists(apache: Referee, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "logback_tools.xml").write_text("<configuration/>")
    line = ["-Xmx128m", *SMALL_JVM, *JAVA_OPENS, f"-Duser.home={tmp_path}"]
    line += [*apache.servers, "org.apache.rocketmq.tools.command.MQAdminStartup"]
    environment = {"ROCKETMQ_HOME": str(tmp_path)}
    with Jvm("mqadmin", line, tmp_path / "mqadmin.log", environment) as process:
        process.end_input()
        process.wait(timeout_s=60)
    listed = {
        found[1] for each in process.output if (found := re.match(r" {3}([a-z]\w+)\s+\S", each))
    }
    assert listed == (OF_5_5 if apache.version.startswith("5") else OF_4_9)
