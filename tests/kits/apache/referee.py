"""Apache RocketMQ from Maven Central: class paths by pom, and our Java programs compiled for them.

Law: no test and no pytest here. Nothing downloaded or compiled is ever a tracked file: it lies
in the cache directory, is made once under a lock, and appears there whole (built beside it, then
renamed).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = [
    "REFEREES",
    "Referee",
    "RefereeUnavailableError",
    "built",
    "cache_dir",
    "missing_tools",
    "resolved_jars",
]

_HERE = Path(__file__).resolve().parent
_JAVA_SOURCES = _HERE / "java"
_JAVA_RELEASE_MIN = 17
_MAVEN_TIMEOUT_S = 600

JAVA_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""What Java 17 wants before the 4.9 servers may map and unmap their files."""


class RefereeUnavailableError(Exception):
    """The referee cannot be had on this machine; the text says what is missing."""


def cache_dir() -> Path:
    """Where jars and classes are kept: $ROCKETSTREAM_INTEROP_DIR or .interop of the repository."""
    given = os.environ.get("ROCKETSTREAM_INTEROP_DIR")
    return Path(given).resolve() if given else _HERE.parents[2] / ".interop"


def missing_tools(*, resolved: bool = False) -> str | None:
    """Return what keeps the referee from running here, or None when all is there.

    Args:
        resolved: the jars are in the cache already, so that Maven is not needed.
    """
    tools = ("java", "javac") if resolved else ("java", "javac", "mvn")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found: install Maven and a JDK >= {_JAVA_RELEASE_MIN}"
    release = _java_release()
    if release < _JAVA_RELEASE_MIN:
        return f"Java {release} found, {_JAVA_RELEASE_MIN} or newer is needed"
    return None


@lru_cache(maxsize=1)
def _java_release() -> int:
    answer = subprocess.run(
        ["javac", "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    words = (answer.stdout + answer.stderr).split()
    text = next((word for word in words if word[:1].isdigit()), "0")
    return int(text.split(".")[0])


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def built(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``, building it first if it is not there yet."""
    if target.is_dir():
        return target
    with _locked(cache_dir()):
        if not target.is_dir():
            draft = target.with_name(target.name + ".draft")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            build(draft)
            draft.rename(target)
    return target


def _run(command: list[str], timeout_s: int) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as slow:
        text = f"{command[0]} did not finish within {timeout_s} s"
        raise RefereeUnavailableError(text) from slow
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).strip()[-1500:]
        raise RefereeUnavailableError(f"{' '.join(command)} failed:\n{tail}")


def _digest(*files: Path) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:12]


def _pom(pom_name: str) -> Path:
    return _HERE / "poms" / f"{pom_name}.xml"


def _jar_dir(pom: Path) -> Path:
    return cache_dir() / "jars" / f"{pom.stem}-{_digest(pom)}"


def resolved_jars(pom: Path) -> Path:
    """Return the folder of jars a pom resolves to; blocks on Maven the first time.

    Raises:
        RefereeUnavailableError: Maven is missing or cannot reach its repository.
    """
    if not _jar_dir(pom).is_dir() and shutil.which("mvn") is None:
        raise RefereeUnavailableError("mvn not found: install Maven")

    def resolve(draft: Path) -> None:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={draft}"]
        # A file of its own: Maven writes beside the pom it reads, which is tracked.
        copy = draft / "pom.xml"
        shutil.copyfile(pom, copy)
        _run(["mvn", "-q", "-B", "-f", str(copy), *goal], _MAVEN_TIMEOUT_S)
        copy.unlink()
        if not any(draft.glob("*.jar")):
            raise RefereeUnavailableError(f"Maven resolved {pom.name} to no jar")

    return built(_jar_dir(pom), resolve)


def _jars(pom_name: str) -> Path:
    return resolved_jars(_pom(pom_name))


def _programs(pom_name: str) -> Path:
    """Our Java programs compiled against one class path: a jar, for its classes can be kept."""
    jars = _jars(pom_name)
    sources = sorted(_JAVA_SOURCES.glob("*.java"))

    def compile_all(draft: Path) -> None:
        names = [str(source) for source in sources]
        with TemporaryDirectory() as classes:
            _run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", classes, *names], 120)
            packed = shutil.make_archive(str(draft / "programs"), "zip", classes)
        Path(packed).rename(draft / "programs.jar")

    key = f"{jars.name}-{_digest(*sources)}"
    return built(cache_dir() / "programs" / key, compile_all)


def _class_path(pom_name: str) -> str:
    return f"{_jars(pom_name)}/*:{_programs(pom_name)}/*"


def _kept_classes(pom_name: str) -> Path:
    """Where the classes of a class path are kept, for this Java only."""
    java = Path(shutil.which("java") or "java").resolve()
    key = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {_class_path(pom_name)}".encode())
    return cache_dir() / "kept" / f"{pom_name}-{key.hexdigest()[:12]}"


def _keep(pom_name: str, names: str) -> None:
    def write(draft: Path) -> None:
        (draft / "names").write_text(names)
        options = [f"-XX:SharedClassListFile={draft}/names", "-Xlog:disable"]
        options += [f"-XX:SharedArchiveFile={draft}/classes.jsa", "-cp", _class_path(pom_name)]
        _run(["java", "-Xshare:dump", "-XX:+UseSerialGC", *options], 120)

    built(_kept_classes(pom_name), write)


@dataclass(frozen=True, slots=True)
class Referee:
    """One version of Apache RocketMQ: which pom holds its servers, which its client and tools.

    JVMs use kept classes, where there are any, unless ``is_as_shipped``.
    """

    version: str
    server_pom: str
    client_pom: str
    is_as_shipped: bool = False

    @property
    def servers(self) -> tuple[str, ...]:
        """Options of a JVM that runs name server or broker."""
        return self._options(self.server_pom)

    @property
    def programs(self) -> tuple[str, ...]:
        """Options of a JVM that runs the client in one of our Java programs."""
        return self._options(self.client_pom)

    @property
    def keeps_classes(self) -> bool:
        """Whether there are classes that JVMs need only map."""
        return all(_kept_classes(pom).is_dir() for pom in (self.server_pom, self.client_pom))

    def keep_classes(self, names: str) -> None:
        """Keep classes as JVMs map them.

        Args:
            names: lines that ``DumpLoadedClassList`` wrote; a class path may lack some of them.

        Raises:
            RefereeUnavailableError: this Java cannot.
        """
        for pom in {self.server_pom, self.client_pom}:
            _keep(pom, names)

    def _options(self, pom_name: str) -> tuple[str, ...]:
        kept = _kept_classes(pom_name) / "classes.jsa"
        is_kept = kept.exists() and not self.is_as_shipped
        shared = (f"-XX:SharedArchiveFile={kept}", "-Xlog:cds=off") if is_kept else ()
        return (*shared, "-cp", _class_path(pom_name))

    def prepare(self) -> None:
        """Resolve and compile everything (blocks up to minutes the first time).

        Raises:
            RefereeUnavailableError: a tool is missing or Maven cannot reach its repository.
        """
        poms = {self.server_pom, self.client_pom}
        reason = missing_tools(resolved=all(_jar_dir(_pom(pom)).is_dir() for pom in poms))
        if reason is not None:
            raise RefereeUnavailableError(reason)
        for pom in poms:
            _programs(pom)


REFEREES = {
    "4.9.7": Referee("4.9.7", "server-4.9", "client-4.9"),
    "5.5.0": Referee("5.5.0", "all-5.5", "all-5.5"),
}
