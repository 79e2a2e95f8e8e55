"""The Kafka peer of the Spark measurements: one broker (KRaft), and Spark's own connector for it.

Law: measures nothing; what is compared with it is chosen elsewhere.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kits.apache.cluster import free_port_for
from tests.kits.apache.jvm import Jvm
from tests.kits.apache.referee import RefereeUnavailableError, resolved_jars

__all__ = ["CONNECTOR_SPARK", "KafkaBroker", "RefereeUnavailableError", "connector_jars"]

_HERE = Path(__file__).resolve().parent
CONNECTOR_SPARK = "4.2.0"
"""The Spark the newest published connector belongs to; both sides are measured on it."""


def connector_jars() -> list[Path]:
    """Jars of Spark's Kafka connector; blocks on Maven the first time.

    Raises:
        RefereeUnavailableError: Maven or its repository cannot be reached.
    """
    return sorted(resolved_jars(_HERE / "connector-4.2.xml").glob("*.jar"))


class KafkaBroker:
    """A Kafka broker that is its own controller, with the settings of the file it ships with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._class_path = f"{resolved_jars(_HERE / 'broker-3.9.xml')}/*"
        client, controller = free_port_for(), free_port_for()
        self.address = f"127.0.0.1:{client}"
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = folder / "server.properties"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "group.initial.rebalance.delay.ms": "0",
            "log.dirs": str(folder / "logs"),
            "num.partitions": "8",
            "offsets.topic.replication.factor": "1",
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        self._settings.write_text(text, encoding="ascii")
        self._jvm: Jvm | None = None

    def __enter__(self) -> Self:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        words = ["format", "-t", cluster_id, "-c", str(self._settings)]
        command = ["java", "-cp", self._class_path, "kafka.tools.StorageTool", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        # The heap Kafka's own start script gives; the collector is the JVM's choice, as for the
        # RocketMQ peer.
        words = ["-Xmx1g", "-Xms1g", "-cp", self._class_path, "kafka.Kafka", str(self._settings)]
        self._jvm = Jvm("kafka", words, self._folder / "kafka.log")
        self.topic("Ready", 1)  # the tool tries until the broker answers
        return self

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        assert self._jvm is not None
        return self._jvm.pid

    def topic(self, name: str, partitions: int = 8) -> str:
        """Create a topic and return its name."""
        words = ["--bootstrap-server", self.address, "--create", "--topic", name]
        words += ["--partitions", str(partitions), "--replication-factor", "1"]
        tool = "org.apache.kafka.tools.TopicCommand"
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", self._class_path, tool, *words]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return name

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._jvm is not None:
            self._jvm.stop(kill=True)
