"""Write what is made of the settings classes: the types of keyword arguments, and docs/settings.md.

Run `python -m scripts.settings_tables` after changing a setting; a test fails when a file is stale,
and so does `--check`.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.pull.schedule import PULL_THREADS
from rocketstream.client.consumer.push.consumer import CHANGEABLE
from rocketstream.client.consumer.settings import (
    LitePullConsumerSettings,
    LitePushConsumerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from rocketstream.client.producer.settings import ProducerSettings, TransactionSettings
from rocketstream.client.trace import TraceSettings
from rocketstream.server.settings import EmbeddedSettings
from rocketstream.settings import about, java_name, keyword_fields
from rocketstream.spark.listener.push_consumer import MAX_OFFSETS_PER_TRIGGER
from rocketstream.spark.listener.push_consumer import SETTINGS as ON_SPARK

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "src" / "rocketstream" / "client" / "keywords.py"
SERVER = ROOT / "src" / "rocketstream" / "server" / "keywords.py"
PUSH_CONSUMER = ROOT / "src" / "rocketstream" / "client" / "consumer" / "push" / "consumer.py"
PAGE = ROOT / "docs" / "settings.md"


@dataclass(frozen=True)
class Table:
    """One kind of client.

    Attributes:
        title: as the page calls it.
        kind: the settings class.
        name: of the keyword type.
        bases: keyword types whose settings it has too.
        without: settings that are parameters of their own, or those of a base.
        says: what stands above its table.
        meanings: of settings that mean something else here than the class says.
        defaults: of settings that have others here, as the page shows them.
        more: rows of keywords that are no settings of the class.
    """

    title: str
    kind: type[Any]
    name: str
    bases: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    says: str = ""
    meanings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more: tuple[str, ...] = ()

    @property
    def fields(self) -> list[dataclasses.Field[Any]]:
        """Its settings."""
        return [each for each in keyword_fields(self.kind) if each.name not in self.without]


SHARED = Table(
    "Every client",
    ClientConfig,
    "ClientKeywords",
    without=frozenset({"namesrv_addr"}),
    says="Fields of `ClientConfig`, and keywords of every producer and consumer. `namesrv_addr` is "
    "one too: `host:port`, several joined by `;`, or one `http://host:port`; without it the "
    "environment variable NAMESRV_ADDR counts.",
)
TRACE = Table(
    "Message trace",
    TraceSettings,
    "TraceKeywords",
    says="Of producers, push and lite pull consumers.",
)
_SHARED = frozenset({"unit_mode"})
PRODUCER = Table(
    "Producers",
    ProducerSettings,
    "ProducerKeywords",
    ("ClientKeywords", "TraceKeywords"),
    _SHARED,
    "`Producer`, `TransactionProducer`, and those of `rocketstream.aio`.",
)
TRANSACTION = Table(
    "Transaction producers",
    TransactionSettings,
    "TransactionProducerKeywords",
    ("ProducerKeywords",),
    says="Besides those of producers. `transaction_listener` takes a `TransactionListener`.",
)
PUSH = Table(
    "Push consumers",
    PushConsumerSettings,
    "PushConsumerKeywords",
    ("ClientKeywords", "TraceKeywords"),
    says="`PushConsumer` and `rocketstream.aio.PushConsumer`. Each is an attribute too; while the "
    f"consumer runs, only {', '.join(f'`{name}`' for name in sorted(CHANGEABLE))} may be set, "
    "others raise `ClientStateError`; `update_core_pool_size` changes how many listener calls "
    "there are at once, up to `consume_thread_max`. "
    "`listener`, `subscription` and `offset_store` are described with the class.",
)
SPARK = Table(
    "Push consumers on Spark",
    PushConsumerSettings,
    "SparkPushConsumerKeywords",
    without=frozenset(each.name for each in keyword_fields(PushConsumerSettings)) - ON_SPARK,
    says="`rocketstream.spark.SparkPushConsumer`, see [consume-on-spark.md](consume-on-spark.md); "
    "settings of connections are `options` of the source there.",
    meanings={
        "consume_thread_max": "most listener calls at once in each task.",
        "pull_batch_size": "most messages of one pull.",
        "max_reconsume_times": "tries after the first before the dead-letter topic; -1 is 16, in "
        "order too.",
        "suspend_current_queue_time_ms": "pause of a queue whose orderly listener asks for one; "
        "less than 10 counts as 10, more than 30,000 is refused by the start.",
        "consume_timeout_minutes": "a listener call that takes longer is left behind, and its "
        "messages are sent back; `micro_batch_timeout_ms`, 60 s but in order, comes first.",
        "await_termination_ms_when_shutdown": "how long `suspend` and `shutdown` wait for a "
        "micro-batch to end.",
        "check_crc": "compare bodies, and records that have one of their own, with their CRC; the "
        "query ends with an error at a damaged message.",
    },
    defaults={"pull_batch_size": "`1024`"},
    more=(
        "| `micro_batch_timeout_ms` | `int \\| None`, ms, from 1 on | 60000, in order none | how "
        "long a micro-batch waits for a listener call; then the call is left behind, and its "
        "messages are sent back. |  |",
        "| `max_offsets_per_trigger` | `int \\| None`, messages, from 1 on | "
        f"`{MAX_OFFSETS_PER_TRIGGER}` | most messages of a micro-batch of each source, None for "
        "no limit (Spark 4.2). |  |",
    ),
)
PULL = Table(
    "Pull consumers",
    PullConsumerSettings,
    "PullConsumerKeywords",
    ("ClientKeywords",),
    _SHARED,
    "`PullConsumer`, `MQPullConsumerScheduleService`, and those of `rocketstream.aio`. The service "
    f"takes a `consumer` in their place; that for threads also `pull_thread_nums` ({PULL_THREADS}) "
    "for its tasks.",
)
LITE = Table(
    "Lite pull consumers",
    LitePullConsumerSettings,
    "LitePullConsumerKeywords",
    ("ClientKeywords", "TraceKeywords"),
    _SHARED,
    "`LitePullConsumer` and `rocketstream.aio.LitePullConsumer`. "
    "`subscription` is described with the class.",
)
LITE_TOPICS = Table(
    "Consumers of lite topics",
    LitePushConsumerSettings,
    "LitePushConsumerKeywords",
    ("ClientKeywords", "TraceKeywords"),
    says="`LitePushConsumer` and `rocketstream.aio.LitePushConsumer`, for lite topics of 5.5. "
    "`bind_topic`, `listener` and `lite_topics` are described with the class.",
)
EMBEDDED = Table(
    "Embedded cluster",
    EmbeddedSettings,
    "EmbeddedKeywords",
    says="`EmbeddedCluster`, after `store_dir` and `settings`; fields of `EmbeddedSettings`.",
)
TABLES = (SHARED, TRACE, PRODUCER, TRANSACTION, PUSH, SPARK, PULL, LITE, LITE_TOPICS, EMBEDDED)

LAW = '''"""Types of the keyword arguments of {whose}, so that type checkers know every setting.

Law: generated by `python -m scripts.settings_tables` from the settings classes; never edited.
"""
'''
CLIENT_HEAD = (
    LAW.format(whose="clients")
    + '''
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import ssl

    from rocketstream.client.consumer.allocate import AllocateMessageQueueStrategy
    from rocketstream.client.consumer.offsets.store import OffsetStore
    from rocketstream.client.consumer.subscription import QueueListener
    from rocketstream.client.hooks import RPCHook
    from rocketstream.model import ConsumeFromWhere, MessageModel

Names = list[str] | tuple[str, ...] | set[str] | frozenset[str]
"""Several texts; one text alone, itself a sequence of texts, is not one of these."""
Numbers = Collection[int]
'''
)
SERVER_HEAD = (
    LAW.format(whose="the embedded cluster")
    + """
from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from rocketstream._util.clock import Clock
    from rocketstream._util.workers import Workers
    from rocketstream.server.store import Files, RetentionConfig, StoreConfig
    from rocketstream.server.tls import ServerTls
"""
)
HEAD = """# Settings

Generated from the settings classes by `python -m scripts.settings_tables`; the checks and the types
of keyword arguments come from the same place.

Settings are keyword arguments: `PushConsumer("billing", consume_thread_max=8)`. A type checker
knows each of them and an editor completes them; functions that pass settings on take
`**settings: Unpack[PushConsumerKeywords]` of `rocketstream.client.keywords`. A name that is no
setting, or a value that cannot be used, is refused where the client is made, with what may have
been meant and what is accepted; Java's names are recognised there. `config=ClientConfig(...)` gives
what all clients of a program share, keywords override it, and `clock` is for tests.

*Java* is the name in Apache's client, or in `broker.conf` for the embedded cluster, where there is
one.
"""


def class_text(table: Table) -> str:
    """Return the source of a keyword type."""
    bases = ", ".join(table.bases or ("TypedDict",))
    doc = f'"""Settings: {table.title[0].lower()}{table.title[1:]}; see docs/settings.md."""'
    rows = [f"    {each.name}: {keyword_type(each)}" for each in table.fields]
    return "\n".join([f"class {table.name}({bases}, total=False):", f"    {doc}", "", *rows, ""])


def keyword_type(field: dataclasses.Field[Any]) -> str:
    """Return the type of a keyword as source."""
    return about(field).typed or str(field.type).replace("'", '"')


def module_text(head: str, tables: Iterable[Table]) -> str:
    """Return the source of a module of keyword types."""
    return "\n\n".join([head, *map(class_text, tables)])


def meanings(kind: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a settings class and its bases say of each setting."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        _, marked, rest = inspect.cleandoc(each.__doc__ or "").partition("\nAttributes:\n")
        name = ""
        for line in rest.splitlines() if marked else ():
            begin = re.match(r"    (\w+): (.*)", line)
            if begin:
                name, found[begin[1]] = begin[1], begin[2]
            elif name and line.startswith("        "):
                found[name] += " " + line.strip()
    return found


def _plain(text: str) -> str:
    """Return a meaning for the page: no citations, Markdown's marks."""
    text = re.sub(r" \((?:C-\d+|W [\d.]+)(?:(?:, | to )C-\d+)*\)", "", text)
    return text.replace("``", "`").replace("|", "\\|")


def default_text(field: dataclasses.Field[Any]) -> str:
    """Return a default as the page shows it."""
    shown = about(field).shown
    if shown is not None:
        return shown
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        return f"`{type(field.default_factory()).__name__}()`"
    if isinstance(value, enum.Enum):
        return f"`{value.name}`"
    if isinstance(value, frozenset):
        value = tuple(sorted(map(int, value)))
    return f"`{value!r}`"


def accepted_text(field: dataclasses.Field[Any]) -> str:
    """Return bounds and unit of a setting as the page shows them."""
    unit = about(field).unit
    for suffix, name in (("_minutes", "minutes"), ("_bytes", "bytes"), ("_ms", "ms")):
        if not unit and field.name.endswith(suffix):
            unit = name
    unit = unit or ("ms" if "_ms_" in field.name else "")
    return ", ".join(part for part in (unit, str(about(field))) if part)


def table_text(table: Table) -> str:
    """Return one table of the page."""
    said = {**meanings(table.kind), **table.meanings}
    rows = []
    for each in table.fields:
        kind = str(each.type) if each.type != "Any" else keyword_type(each)
        java = java_name(each)
        cells = (
            f"`{each.name}`",
            ", ".join(filter(None, (f"`{kind}`".replace("|", "\\|"), accepted_text(each)))),
            table.defaults.get(each.name) or default_text(each),
            _plain(said[each.name]),
            f"`{java}`" if java else "",
        )
        rows.append(f"| {' | '.join(cells)} |")
    top = [
        "| setting | type, unit, range | default | meaning | Java |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([f"## {table.title}", "", table.says, "", *top, *rows, *table.more, ""])


def push_consumer_text() -> str:
    """Return the source of the push consumer with an attribute for each of its settings."""
    rows = [f"    {each.name}: Setting[{keyword_type(each)}] = Setting()\n" for each in PUSH.fields]
    text = PUSH_CONSUMER.read_text(encoding="utf-8")
    return re.sub(r"(    \w+: Setting\[.+\] = Setting\(\)\n)+", "".join(rows), text)


def files() -> dict[Path, str]:
    """Return the text each generated file must have."""
    return {
        CLIENT: module_text(CLIENT_HEAD, [each for each in TABLES if each is not EMBEDDED]),
        SERVER: module_text(SERVER_HEAD, [EMBEDDED]),
        PUSH_CONSUMER: push_consumer_text(),
        PAGE: "\n".join([HEAD, *map(table_text, TABLES)]),
    }


def stale() -> list[str]:
    """Return which files are not as they must be."""
    return [
        str(path.relative_to(ROOT))
        for path, text in files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(f"stale: {', '.join(stale())}" if stale() else 0)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
