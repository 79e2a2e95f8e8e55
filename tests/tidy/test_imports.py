"""Imports go downward only, and what must be pure is pure (design section 2)."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys

import pytest

from tests.tidy.source import ROOT, Module, modules, of_each, python_files

PACKAGE = "rocketstream"
SAYS_PURE = re.compile(r"^Pure[:,]", re.MULTILINE)
PURE_GROUND = {"checks", "protocol", "model", "errors", "limits", "settings", "suggestions"}

# Each area lists what of ours it may import besides itself and the ground floor.
GROUND = {"checks", "errors", "limits", "model", "settings", "_util", "__version__"}
ALLOWED: dict[str, set[str]] = {
    "errors": {"limits"},
    "limits": set(),
    "model": {"checks", "errors", "limits"},
    "suggestions": set(),
    "checks": {"errors"},
    "settings": {"checks", "errors", "suggestions"},
    "_util": {"errors", "limits"},
    "protocol": GROUND - {"_util"},
    "transport": GROUND | {"protocol"},
    "columns": GROUND | {"protocol"},
    "client": GROUND | {"suggestions", "protocol", "transport", "columns"},
    "server": GROUND | {"protocol", "transport"},
    "admin": GROUND | {"suggestions", "protocol", "transport", "client"},
    "spark": GROUND | {"protocol", "transport", "columns", "client", "admin"},
    "pipelines": GROUND | {"spark"},
    # What keeps looking at a cluster, and its faces: renderers of what admin tells.
    "watch": GROUND | {"protocol", "admin"},
    "dashboard": GROUND | {"protocol", "admin", "watch"},
    "agents": GROUND | {"protocol", "admin", "watch"},
    "cli": GROUND
    | {"protocol", "admin", "client", "server", "spark", "pipelines", "aio"}
    | {"watch", "dashboard", "agents"},
    "testing": GROUND | {"protocol", "transport", "client", "server", "admin", "aio"},
    "aio": GROUND | {"protocol", "client"},
    "otel": GROUND | {"client"},
    # Brokers, transports and triggers of others' frameworks: the client in their terms.
    "frameworks": GROUND | {"protocol", "client"},
    "__init__": GROUND | {"suggestions", "protocol", "client", "aio"},
    "__main__": {"cli"},
}
PURE_STDLIB = {
    "__future__", "abc", "ast", "base64", "binascii", "bisect", "builtins", "codecs", "collections",
    "contextlib", "dataclasses", "datetime", "difflib", "enum", "fnmatch", "fractions",
    "functools", "hashlib", "heapq", "hmac", "inspect", "ipaddress", "itertools", "json", "math",
    "operator", "re", "reprlib", "string", "struct", "types", "typing", "unicodedata",
    "zlib",
}  # fmt: skip
PURE_THIRD_PARTY = {"isal", "orjson", "lz4", "zstandard", "numpy", "pyarrow"}
# Names without I/O in modules that have more than those.
PURE_IN_OTHERS = {
    "rocketstream.spark.driver.runner.WARNINGS",
    "shlex.quote",
    "shlex.split",
}
# The modules that have to be pure, and to say so. In the client only its ``core`` has to be pure.
SAID_TO_BE_PURE = tuple(
    f"{PACKAGE}.{name}"
    for name in (
        "admin.core", "admin.rows", "admin.state", "checks", "columns", "model", "protocol",
        "server.broker.core", "server.nameserver.core", "settings", "spark.listener.batches",
        "spark.listener.messages",
        "spark.options", "suggestions", "testing.history", "watch.alerting",
        "watch.model", "watch.series", "watch.windows",
    )
)  # fmt: skip
# The rooms of the connector and of the operations. Each lists what it may import of ours besides
# itself and the ground floor. Of the connector, driver and executor know nothing of each other;
# what both need stands beside them, and ``reader``, whose classes pyspark calls in both places,
# above them.
TASK = {"columns.table", "spark.options", "spark.scan"}
CONNECTING = {"spark.connections", "spark.losses", "spark.patience"}
# What was seen of a cluster, as values, and what they mean.
SEEN = {"admin.core", "admin.rows", "admin.state"}
SERVICES = {
    "admin.changes",
    "admin.cluster",
    "admin.groups",
    "admin.letters",
    "admin.messages",
    "admin.topics",
}
CHANGING = "rocketstream.admin.safety.ChangingWire"
CHANGERS = {"admin.safety"}
ROOMS: dict[str, set[str]] = {
    "spark": {
        "spark.letters",
        "spark.listener",
        "spark.measures",
        "spark.progress",
        "spark.setup",
        "spark.source",
    },
    "spark.letters": {"protocol"},
    "spark.measures": {"spark.driver"},
    "spark.format": {"spark.setup"},
    "spark.source": TASK | {"spark.format", "spark.reader", "spark.store", "spark.sink", "client"},
    "spark.reader": TASK | {"spark.format", "spark.driver", "spark.executor", "spark.store"},
    "spark.driver": TASK | CONNECTING | {"protocol", "transport"},
    "spark.executor": TASK | CONNECTING | {"columns", "spark.worker", "protocol", "transport"},
    # Renders what the admin operations tell, as the command line does; no other room asks them.
    # Its listener of queries tells their own measures.
    "spark.progress": {
        "spark.connections",
        "spark.format",
        "spark.measures",
        "spark.options",
        "protocol",
    }
    | {"admin.groups", "admin.rows", "admin.service"},
    "spark.sink": {
        "spark.format",
        "spark.options",
        "spark.connections",
        "spark.patience",
        "spark.worker",
        "client",
        "columns",
        "columns.table",
        "protocol",
        "transport",
    },
    # Files instead of brokers: planned and read here, with the driver's arithmetic.
    "spark.store": TASK | {"columns", "spark.driver", "spark.losses", "spark.worker", "protocol"},
    "spark.listener": {
        "columns",
        "columns.table",
        "spark.connections",
        "spark.driver",
        "spark.format",
        "spark.options",
        "spark.patience",
        "spark.setup",
        "spark.worker",
        "client",
        "protocol",
    },
    "spark.setup": set(),
    "spark.scan": {"columns.table", "spark.options", "protocol"},
    "columns": {"columns.table", "protocol"},
    "columns.table": set(),
    "spark.options": {"protocol"},
    "spark.losses": {"columns.table"},
    "spark.patience": set(),
    "spark.worker": {
        "spark.connections",
        "spark.options",
        "protocol",
        "transport",
    },
    "spark.connections": {"spark.options", "client", "transport"},
    # The rooms of the operations: what is asked, below what is made of it, below ``Admin``. Every
    # change passes ``safety``; looking at a cluster, or at how far groups are, stands below them.
    "admin": {
        "admin.admin",
        "admin.core",
        "admin.letters",
        "admin.messages",
        "admin.rows",
        "admin.safety",
        "admin.state",
    },
    "admin.aio": SERVICES | {"admin.admin", "admin.service"},
    "admin.admin": SERVICES | {"admin.safety", "admin.service", "client"},
    "admin.groups": SEEN
    | {"admin.changes", "admin.cluster", "admin.why", "admin.service"}
    | {"admin.survey", "admin.sweep", "admin.topics", "admin.wire", "protocol"},
    "admin.why": SEEN
    | {"admin.filtered", "admin.letters", "admin.messages", "admin.service", "admin.sweep"}
    | {"admin.wire", "protocol"},
    "admin.letters": {"admin.messages", "admin.service", "admin.sweep", "admin.wire"}
    | {"admin.core", "client", "protocol"},
    "admin.messages": SEEN
    | {"admin.service", "admin.topics", "admin.wire", "protocol", "suggestions"},
    "admin.changes": {
        "admin.core",
        "admin.safety",
        "admin.service",
        "admin.state",
        "admin.sweep",
        "admin.topics",
        "admin.wire",
        "protocol",
        "suggestions",
    },
    "admin.cluster": SEEN | {"admin.service", "admin.sweep", "admin.wire", "protocol"},
    "admin.topics": SEEN | {"admin.service", "admin.sweep", "admin.wire", "protocol"},
    "admin.sweep": SEEN
    | {"admin.service", "admin.survey", "admin.wire", "protocol", "suggestions"},
    "admin.survey": SEEN | {"admin.filtered", "admin.service", "admin.wire", "client", "protocol"},
    "admin.filtered": SEEN | {"admin.wire", "protocol"},
    # What all services share.
    "admin.service": SEEN | {"admin.messages", "admin.safety", "admin.wire", "client"},
    "admin.safety": {"admin.wire", "client", "protocol"},
    # Answers are told in the values of the model where it has them.
    "admin.wire": {"admin.state", "client", "protocol"},
    "admin.core": {"admin.rows", "admin.state", "protocol", "suggestions"},
    "admin.state": {"admin.rows", "protocol"},
    "admin.rows": set(),
}

# In the listener's room: the work of tasks knows nothing of the user's process, where the query and
# the claim on its group are, and nothing is kept between tasks there.
LISTENER = f"{PACKAGE}.spark.listener."
IN_TASKS = tuple(
    LISTENER + name for name in ("batches", "calls", "messages", "send_back", "sink", "task")
)
AT_USERS = tuple(
    LISTENER + name for name in ("claim", "consume", "on_request", "push_consumer", "queries")
)
BARRED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(IN_TASKS, (f"{PACKAGE}.spark.driver", *AT_USERS)),
    **dict.fromkeys(AT_USERS, (f"{PACKAGE}.spark.worker",)),
}

# Third-party modules and the one place each may be imported.
HOMES: dict[str, tuple[str, ...]] = {
    "pyspark": (
        "rocketstream.spark.format",
        "rocketstream.spark.reader",
        "rocketstream.spark.progress.listener",
        "rocketstream.spark.progress.source",
        "rocketstream.spark.listener.on_request",
        "rocketstream.spark.listener.sink",
        "rocketstream.spark.sink.writer",
        "rocketstream.spark.setup.shipping",
        "rocketstream.pipelines",
        "pyspark_rocketmq",
        "pyspark_rocketmq_progress",
    ),
    "py4j": ("rocketstream.spark", "rocketstream.pipelines"),
    "google": ("rocketstream.pipelines.protobuf", "rocketstream.admin.messages.bodies"),
    "fastavro": ("rocketstream.admin.messages.bodies",),
    "pyarrow": (
        "rocketstream.client.consumer.lite",
        "rocketstream.client.producer.many",
        "rocketstream.columns",
        "rocketstream.pipelines.protobuf",
        "rocketstream.spark.listener.messages",
        "rocketstream.spark.executor.fetch",
        "rocketstream.spark.progress.source",
        "rocketstream.spark.reader",
        "rocketstream.spark.store.rows",
        "rocketstream.spark.sink.writer",
    ),
    "numpy": (
        "rocketstream.client.producer.many",
        "rocketstream.columns",
        "rocketstream.spark.store",
    ),
    "prometheus_client": ("rocketstream.watch.metrics",),
    "isal": ("rocketstream.protocol.crc",),
    "orjson": ("rocketstream.protocol.plain_json",),
    "lz4": ("rocketstream.protocol.compression",),
    "zstandard": ("rocketstream.protocol.compression",),
    "cryptography": ("rocketstream.server.certificates",),
    "yaml": ("rocketstream.server.broker.acl.files",),
    "uvloop": ("rocketstream._util.loops",),
    "click": ("rocketstream.cli",),
    "rich": ("rocketstream.cli",),
    "textual": ("rocketstream.cli.top",),
    "starlette": ("rocketstream.dashboard",),
    "h11": ("rocketstream.dashboard.running",),
    "uvicorn": ("rocketstream.dashboard",),
    "jinja2": ("rocketstream.dashboard",),
    "markupsafe": ("rocketstream.dashboard",),
    "mcp": ("rocketstream.agents",),
    "pydantic": ("rocketstream.agents",),
    "opentelemetry": ("rocketstream.client.otel",),
    "airflow": ("rocketstream.frameworks.airflow",),
    "taskiq": ("rocketstream.frameworks.taskiq",),
    "kombu": ("rocketstream.frameworks.kombu",),
    "faststream": ("rocketstream.frameworks.faststream",),
    "fast_depends": ("rocketstream.frameworks.faststream",),
    "fastapi": ("rocketstream.frameworks.faststream.fastapi",),
    "pytest": ("rocketstream.testing",),
}


def area(name: str) -> str:
    """Return the area of a module of ours: its first folder or its own name."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def says_pure(module: Module) -> bool:
    """Whether the docstring of a module has a paragraph that begins ``Pure:``."""
    return SAYS_PURE.search(ast.get_docstring(module.tree) or "") is not None


def is_pure(module: Module) -> bool:
    """Whether a module has to be pure: because it says so, or by its place."""
    return says_pure(module) or ".core" in module.name or module.name.startswith(SAID_TO_BE_PURE)


def names(found: list[Module]) -> list[str]:
    return [module.name for module in found]


OURS = [m for m in modules() if m.name.split(".")[0] == PACKAGE]
PURE = [m for m in OURS if is_pure(m)]
PURE_NAMES = {m.name for m in PURE}
WITH_ROOMS = {"spark", "admin"}
IN_ROOMS = [m for m in OURS if area(m.name) in WITH_ROOMS]


@of_each(OURS)
def test_imports_go_downward_only(module: Module) -> None:
    own = area(module.name)
    assert own in ALLOWED, f"{module.place}: say in ALLOWED what {own!r} may import"
    wrong = []
    for line, target, _ in module.imports:
        if target.split(".")[0] != PACKAGE or target == PACKAGE:
            continue
        other = area(target)
        if other == own or other in ALLOWED[own]:
            continue
        if target.count(".") == 1 and other not in ALLOWED:
            continue  # a name of the package itself, not a module
        wrong.append(f"{module.place}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def does_io(module: Module) -> list[str]:
    """Return the imports of a pure module that are not pure."""
    wrong = []
    pure_lines = {line for line, target, _ in module.imports if target in PURE_IN_OTHERS}
    for line, target, type_only in module.imports:
        top = target.split(".")[0]
        if type_only or line in pure_lines or top in PURE_STDLIB | PURE_THIRD_PARTY:
            continue
        if target.startswith("urllib.parse"):
            continue
        if top == PACKAGE and (area(target) in PURE_GROUND or target == PACKAGE):
            continue
        # Either a module, a name of a module, or the package of a module named on the same line.
        if {target, target.rpartition(".")[0]} & PURE_NAMES or _leads_to_pure(module, line, target):
            continue
        wrong.append(f"{module.place}:{line} imports {target}")
    return wrong


def _leads_to_pure(module: Module, line: int, package: str) -> bool:
    named = {name for at, name, _ in module.imports if at == line and name != package}
    return bool(named) and named <= PURE_NAMES


@of_each(PURE)
def test_pure_code_imports_nothing_that_does_io(module: Module) -> None:
    wrong = does_io(module)
    assert not wrong, "\n".join(wrong)


@of_each([m for m in OURS if m.name.startswith(SAID_TO_BE_PURE)])
def test_modules_that_decide_say_that_they_are_pure(module: Module) -> None:
    assert says_pure(module), f"{module.place}: begin a paragraph of its docstring with `Pure:`"


def test_the_rule_sees_an_import_that_does_io() -> None:
    text = '"""Decisions.\n\nPure: values."""\nimport socket\nimport json\n'
    module = Module(f"{PACKAGE}.m", ROOT / "m.py", text, ast.parse(text))
    assert says_pure(module)
    assert [line.rpartition(" ")[2] for line in does_io(module)] == ["socket"]


@of_each(modules())
def test_each_third_party_module_has_one_home(module: Module) -> None:
    wrong = []
    for line, target, _ in module.imports:
        top = target.split(".")[0]
        if (
            top in {PACKAGE, "pyspark_rocketmq", "pyspark_rocketmq_progress"}
            or top in sys.stdlib_module_names
        ):
            continue
        homes = HOMES.get(top)
        if homes is None:
            wrong.append(f"{module.place}:{line} imports {top}, which has no home in HOMES")
        elif not module.name.startswith(homes):
            wrong.append(f"{module.place}:{line} imports {top}; its home is {' or '.join(homes)}")
    assert not wrong, "\n".join(wrong)


def room(name: str) -> str:
    """Return the room of a module or name of ours: ``spark.driver``, else its area."""
    own = ".".join(name.split(".")[1:3])
    return own if own in ROOMS or area(name) in WITH_ROOMS else area(name)


def closed_doors(module: Module) -> list[str]:
    """Return what a module imports from rooms it may not."""
    own = room(module.name)
    assert own in ROOMS, f"{module.place}: say in ROOMS what {own!r} may import"
    wrong = []
    for line, target, _ in module.imports:
        if target.split(".")[0] != PACKAGE or target == PACKAGE:
            continue
        other = room(target)
        if (
            target.startswith(BARRED.get(module.name, ()))
            or (target.startswith(CHANGING) and own not in CHANGERS)
            or other not in {own} | ROOMS[own] | GROUND
        ):
            wrong.append(f"{module.place}:{line} imports {target}")
    return wrong


@of_each(IN_ROOMS)
def test_each_room_keeps_to_its_law(module: Module) -> None:
    """What runs in a task, what changes a cluster, and what is pure, are told apart by folder."""
    wrong = closed_doors(module)
    assert not wrong, "put what both need beside them:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("columns.decode", "from rocketstream.spark.executor.fetch import fetch"),
        ("columns.decode", "from rocketstream.spark.driver.planning import plan"),
        ("columns.decode", "from rocketstream.transport.blocking_pool import BlockingPool"),
        ("spark.executor.rows", "from rocketstream.spark.driver.planning import plan"),
        ("spark.executor.rows", "from ..driver import planning"),
        ("spark.driver.cluster", "def late():\n    from rocketstream.spark.executor import worker"),
        ("spark.driver.cluster", "from rocketstream.columns.layout import Piece"),
        ("spark.driver.cluster", "from rocketstream.spark import worker"),
        ("spark.listener.task", "from rocketstream.spark.driver.planning import plan"),
        ("spark.listener.task", "from rocketstream.spark.listener.consume import consume"),
        ("spark.listener.consume", "from rocketstream.spark.worker import pool"),
        ("spark.setup.java", "from rocketstream.spark.options import read_options"),
        ("spark.options", "from rocketstream.spark.scan import Scan"),
        ("admin.sweep", "from rocketstream.admin.changes.resets import ResetAdmin"),
        ("admin.changes.resets", "from rocketstream.admin.safety import ChangingWire"),
        ("admin.sweep", "from rocketstream.admin.safety import ChangeGate"),
        ("admin.wire.questions", "from rocketstream.admin.core import joining"),
        ("admin.messages.search", "from ..safety import ChangingWire"),
        ("admin.messages.viewing", "from rocketstream.admin.changes.resets import ResetAdmin"),
        ("admin.why", "from rocketstream.admin import Admin"),
    ],
)
def test_a_door_that_is_closed_is_seen(name: str, text: str) -> None:
    """The rule itself."""
    made_up = Module(f"{PACKAGE}.{name}", ROOT / "m.py", text, ast.parse(text))
    assert closed_doors(made_up)
    assert not closed_doors(dataclasses.replace(made_up, tree=ast.parse("import json")))


def test_the_programs_over_the_connector_are_imported_by_faces_alone() -> None:
    """The connector can be understood, and shipped, without them."""
    assert {own for own, below in ALLOWED.items() if "pipelines" in below} == {"cli"}


def test_client_and_server_do_not_know_each_other() -> None:
    """The two sides share only bytes: a mistake on one side must show on the other."""
    assert "server" not in ALLOWED["client"]
    assert "client" not in ALLOWED["server"]


def test_spark_package_is_thin() -> None:
    """Spark imports it on any lookup of any format: an error there hurts every query."""
    thin = [m for m in modules() if m.name.startswith("pyspark_rocketmq")]
    for module in thin:
        top_level = [n for n in module.tree.body if n.__class__.__name__.startswith("Import")]
        for node in top_level:
            text = module.text.splitlines()[node.lineno - 1]
            assert "rocketstream" not in text, f"{module.place}: import it lazily: {text}"


def _imported(module: Module, known: set[str]) -> set[str]:
    """Return the modules of ours a module knows, if only to annotate what it is given."""
    found = {(line, name) for line, name, _ in module.imports if name in known}
    # ``from package import module`` names both; the package itself is not what is wanted.
    packages = {(line, name.rpartition(".")[0]) for line, name in found}
    return {name for _, name in found - packages}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Each module can be understood, and loaded, after those it stands on."""
    graph = {module.name: set[str]() for module in modules()}
    for module in modules():
        graph[module.name] = _imported(module, set(graph)) - {module.name}
    while True:
        free = [name for name, below in graph.items() if not below & graph.keys()]
        if not free:
            break
        for name in free:
            del graph[name]
    # What only stands on a circle is not one of it.
    while tops := graph.keys() - {name for below in graph.values() for name in below}:
        for name in tops:
            del graph[name]
    assert sorted(graph) == [], "these import each other"


def test_producers_know_nothing_of_consumers() -> None:
    """A consumer sends anew what failed; a producer never consumes."""
    for module in modules():
        if module.name.startswith("rocketstream.client.producer"):
            wrong = {
                n for _, n, _ in module.imports if n.startswith("rocketstream.client.consumer")
            }
            assert not wrong, f"{module.place} imports {sorted(wrong)}"


# Names that reach the file system; a Path may be put together and taken apart anywhere.
DISK_MODULES = {"os", "shutil", "tempfile", "mmap", "fcntl", "msvcrt", "io", "glob"}
DISK_METHODS = {
    "absolute", "chmod", "cwd", "exists", "expanduser", "glob", "hardlink_to", "home", "is_dir",
    "is_file", "is_symlink", "iterdir", "lstat", "mkdir", "read_bytes", "read_text", "readlink",
    "rename", "resolve", "rglob", "rmdir", "samefile", "stat", "symlink_to", "touch", "unlink",
    "write_bytes", "write_text",
}  # fmt: skip
DISK_HOME = "rocketstream.server.store.files"
DISK_RECEIVERS = ("files", "_files")


def disk_calls(module: Module) -> list[str]:
    """Return where a module reaches the file system by another way than ``Files``."""
    wrong = [
        f"{module.place}:{line} imports {target}"
        for line, target, type_only in module.imports
        if target.split(".")[0] in DISK_MODULES and not type_only
    ]
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            wrong.append(f"{module.place}:{node.lineno} open()")
        if isinstance(node.func, ast.Attribute) and node.func.attr in DISK_METHODS:
            receiver = ast.unparse(node.func.value)
            if receiver.split(".")[-1] not in DISK_RECEIVERS:
                wrong.append(f"{module.place}:{node.lineno} {receiver}.{node.func.attr}()")
    return wrong


SERVER = [m for m in OURS if area(m.name) == "server" and m.name != DISK_HOME]


@of_each(SERVER)
def test_servers_reach_the_file_system_by_files_alone(module: Module) -> None:
    """What goes past ``Files`` is not there on a simulated disk, and its faults are not tried."""
    wrong = disk_calls(module)
    assert not wrong, "use the Files handed in:\n" + "\n".join(wrong)


def test_a_call_past_files_is_seen() -> None:
    """The rule itself: it sees modules, built-in open, and the methods of a path."""
    text = "import os\nopen('a')\npath.exists()\nself._files.exists(path)\npath.with_name('b')\n"
    found = disk_calls(Module("m", ROOT / "m.py", text, ast.parse(text)))
    assert [line.split(" ", 1)[1] for line in found] == ["imports os", "open()", "path.exists()"]


ON_EVERY_SYSTEM = ("client", "transport", "protocol", "_util", "admin", "cli")
UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "posix", "uvloop"}


def test_no_module_of_the_client_imports_what_windows_lacks() -> None:
    """uvloop, resource and locks of files are asked for where they may be, nothing else is."""
    found = [
        f"{module.path.name}: {target}"
        for module in modules()
        if area(module.name) in ON_EVERY_SYSTEM
        for _, target, _ in module.imports
        if target in UNIX_ONLY
    ]
    assert sorted(found) == [
        "loops.py: uvloop", "machine.py: resource", "safety.py: fcntl", "screen.py: termios",
    ]  # fmt: skip


NOT_FROM_OUTSIDE = re.compile(
    r"\s*[\"']*(?=from |import ).*(rocketstream\.testing|rocketstream import .*\btesting\b"
    r"|tests\.(scenarios|simulation|mutants)|tests import .*\b(scenarios|simulation|mutants)\b)"
)


def test_the_look_from_outside_shares_nothing_with_the_simulator() -> None:
    """Two looks that share an assumption are one; programs kept as text count too."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in sorted((ROOT / "tests/outside").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if NOT_FROM_OUTSIDE.match(line)
    ]
    assert wrong == []
    assert NOT_FROM_OUTSIDE.match("from rocketstream.testing.sim import simulate")


IMPORTS_TESTS = re.compile(
    r"^\s*(?:(?:from|import)\s+[\w.]*\btest_\w+"
    r"|from\s+[\w.]+\s+import\s+(?:\([^)]*|.*)\btest_\w+)",
    re.MULTILINE,
)
"""An import of a test module or a test, also in a program kept as text."""


def test_no_test_module_is_imported() -> None:
    """What tests share stands beside them, so each test module can be changed alone."""
    wrong = []
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        for found in IMPORTS_TESTS.finditer(text):
            line = text.count("\n", 0, found.end()) + 1
            wrong.append(f"{path.relative_to(ROOT)}:{line} {found.group().strip()}")
    assert not wrong, "put what they share in a module of its own:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("from tests.spark_write.test_write import stored", True),
        ("def late():\n    from .test_write import stored", True),
        ("import tests.spark_write.test_write as write", True),
        ("from tests.spark_write import support, test_write", True),
        ("from tests.spark_write import (\n    support,\n    test_write,\n)", True),
        ('PROGRAM = """\nfrom tests.spark_write.test_write import stored\n"""', True),
        ("from tests.kits.spark.support import stored", False),
        ("from rocketstream.testing import pytest_plugin\n\ndef test_write():\n    pass", False),
    ],
)
def test_an_import_of_a_test_module_is_seen(text: str, is_wrong: bool) -> None:
    """The rule itself."""
    assert bool(IMPORTS_TESTS.search(text)) is is_wrong
