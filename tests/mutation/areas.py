"""What is changed, area by area, and where the tests nearest to it are.

Law: a table; which of an area's tests notice a change is found by what they reach (``reached``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


@dataclass(frozen=True)
class Area:
    """Modules, as files or packages below ``src/rocketstream``, and their tests below ``tests``.

    ``tables`` are those of the tests that hold whatever a module has against a table: they are near
    to every value made at import, and no word they have in common tells it.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    tables: tuple[str, ...] = ()

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield (dotted name, file) of every module."""
        for place in self.modules:
            path = SRC / "rocketstream" / place
            found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            for file in found:
                parts = file.relative_to(SRC).with_suffix("").parts
                names = parts[:-1] if parts[-1] == "__init__" else parts
                yield ".".join(names), file


CLIENT = (
    "consuming",
    "hostile",
    "lifecycle",
    "lite_topics",
    "observing",
    "offsets",
    "ordering",
    "outages",
    "pulling",
    "rebalance",
    "retry",
    "routes",
    "sending",
    "settings",
    "transactions",
)

AREAS = (
    Area(
        "client",
        (
            "client/consumer/allocate.py",
            "client/consumer/listener.py",
            "client/consumer/process_queue.py",
            "client/consumer/pull_answer.py",
            "client/consumer/retry.py",
            "client/consumer/settings.py",
            "client/consumer/consume/orderly_queue.py",
            "client/consumer/consume/orderly_turn.py",
            "client/consumer/lite/queues.py",
            "client/consumer/lite_topics/topics.py",
            "client/instance/questions.py",
            "client/instance/routes.py",
            "client/producer/gathering.py",
            "client/producer/policy.py",
            "client/producer/settings.py",
        ),
        CLIENT,
        ("settings/test_numbers.py", "settings/test_settings_table.py"),
    ),
    Area(
        "offsets",
        ("client/consumer/offsets",),
        (
            "offsets",
            "consuming/test_push_machine.py",
            "pulling/test_pull_machine.py",
            "pulling/test_lite_pull_machine.py",
            "pulling/test_pull_consumer.py",
            "pulling/test_lite_pull.py",
            "consuming/test_broadcasting.py",
            "rebalance/test_group.py",
        ),
    ),
    Area(
        "protocol",
        ("protocol",),
        (
            "wire",
            "filters",
            "lite_topics/test_lite_wire.py",
            "observing/test_trace_client.py",
            "observing/test_trace_wire.py",
            "operations/test_message_cores.py",
            "retry/test_cause.py",
            "security/test_signing.py",
            "sending/test_send_server.py",
            "settings/test_names.py",
            "settings/test_namespace.py",
            "storage/test_batches.py",
        ),
        ("wire/test_defaults.py", "wire/test_codes.py"),
    ),
    Area(
        "consumers",
        (
            "client/consumer/assignment.py",
            "client/consumer/pull_requests.py",
            "client/consumer/puller.py",
            "client/consumer/queue.py",
            "client/consumer/send_back.py",
            "client/consumer/consume/concurrent.py",
            "client/consumer/consume/listener_calls.py",
            "client/consumer/consume/orderly.py",
            "client/consumer/consume/queue_locks.py",
            "client/consumer/consume/workers.py",
            "client/consumer/lite/impl.py",
            "client/consumer/pull/impl.py",
            "client/consumer/pull/schedule.py",
            "client/consumer/push/impl.py",
        ),
        CLIENT,
        ("settings/test_numbers.py", "settings/test_settings_table.py"),
    ),
    Area(
        "producers",
        (
            "client/producer/async_sender.py",
            "client/producer/gatherer.py",
            "client/producer/message.py",
            "client/producer/outbox.py",
            "client/producer/send_future.py",
            "client/producer/transaction.py",
        ),
        ("sending", "transactions", "settings", "lifecycle", "hostile", "outages"),
        ("settings/test_numbers.py", "settings/test_settings_table.py"),
    ),
    Area("transport", ("transport",), ("connections",)),
    Area(
        "broker",
        ("server/broker/core",),
        (
            "delay",
            "filters",
            "hostile",
            "offsets",
            "pulling",
            "rebalance",
            "retry",
            "routes",
            "security",
            "sending",
            "serving",
            "storage",
            "transactions",
        ),
    ),
    Area(
        "spark",
        (
            "spark/driver/continuity.py",
            "spark/driver/offsets.py",
            "spark/driver/planning.py",
            "spark/driver/positions.py",
            "spark/driver/pulls.py",
            "spark/driver/reporting.py",
            "spark/driver/streaming.py",
        ),
        ("spark_read", "spark_progress", "spark_setup"),
    ),
    Area(
        "columns",
        (
            "client/consumer/lite/arrow.py",
            "client/consumer/lite/batches.py",
            "client/producer/many.py",
            "columns/given.py",
        ),
        (
            "columns",
            "pulling/test_lite_arrow.py",
            "pulling/test_poll_arrow.py",
            "sending/test_many_sends.py",
            "sending/test_send_many.py",
        ),
    ),
    Area(
        "sink",
        (
            "columns/messages.py",
            "columns/values.py",
            "spark/sink/columns.py",
            "spark/sink/routes.py",
            "spark/sink/sender.py",
        ),
        ("spark_write",),
    ),
    Area(
        "listener",
        (
            "spark/listener/batches.py",
            "spark/listener/calls.py",
            "spark/listener/claim.py",
            "spark/listener/consume.py",
            "spark/listener/messages.py",
            "spark/listener/on_request.py",
            "spark/listener/queries.py",
            "spark/listener/send_back.py",
            "spark/listener/sink.py",
            "spark/listener/task.py",
        ),
        ("spark_listener",),
    ),
)
