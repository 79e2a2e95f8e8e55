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
        ("unit/client",),
        ("unit/client/test_numbers.py", "unit/client/test_settings_table.py"),
    ),
    Area(
        "offsets",
        ("client/consumer/offsets",),
        (
            "unit/client/test_offset_stores.py",
            "unit/client/test_user_offsets.py",
            "unit/client/test_queue_offsets.py",
            "unit/client/test_remote_offsets.py",
            "unit/client/test_offset_view.py",
            "unit/client/test_push_machine.py",
            "unit/client/test_pull_machine.py",
            "unit/client/test_lite_pull_machine.py",
            "behaviour/test_pull_consumer.py",
            "behaviour/test_lite_pull.py",
            "behaviour/test_broadcasting.py",
            "behaviour/test_group.py",
        ),
    ),
    Area(
        "protocol",
        ("protocol",),
        (
            "protocol",
            "unit/broker",
            "unit/client/test_names.py",
            "unit/client/test_namespace.py",
            "unit/client/test_trace.py",
            "unit/admin/test_message_cores.py",
            "server/test_send.py",
            "server/test_sql92.py",
        ),
        ("protocol/test_defaults.py", "protocol/test_codes.py"),
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
        (
            "unit/client",
            "behaviour/test_broadcasting.py",
            "behaviour/test_consume.py",
            "behaviour/test_group.py",
            "behaviour/test_letters.py",
            "behaviour/test_listener_results.py",
            "behaviour/test_lite_pull.py",
            "behaviour/test_orderly.py",
            "behaviour/test_pull_consumer.py",
            "behaviour/test_pull_schedule.py",
            "behaviour/test_push.py",
            "behaviour/test_put_back.py",
        ),
        ("unit/client/test_numbers.py", "unit/client/test_settings_table.py"),
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
        (
            "unit/client",
            "behaviour/test_auto_batch.py",
            "behaviour/test_produce.py",
            "behaviour/test_producer.py",
            "behaviour/test_request_reply.py",
            "behaviour/test_transactions.py",
        ),
        ("unit/client/test_numbers.py", "unit/client/test_settings_table.py"),
    ),
    Area("transport", ("transport",), ("unit/transport",)),
    Area("broker", ("server/broker/core",), ("unit/broker", "server")),
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
        ("unit/spark",),
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
            "unit/columns",
            "unit/client/test_lite_arrow.py",
            "unit/client/test_many_sends.py",
            "behaviour/test_poll_arrow.py",
            "behaviour/test_send_many.py",
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
        ("unit/spark/sink",),
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
        ("unit/spark/listener",),
    ),
)
