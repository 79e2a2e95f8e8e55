"""Make the project's own environment: a virtual environment with everything pinned.

Run by the Makefile with whatever ``python3`` the user has, so it must start on any Python 3 and
say in one line what to do when it cannot go on.
"""

import os
import subprocess
import sys

MINIMUM = (3, 11)


def fail(text):
    sys.stderr.write("error: %s\n" % text)
    sys.exit(1)


def run(words, hint):
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        lines = [line for line in result.stdout.strip().splitlines() if line.strip()]
        wanted = [line for line in lines if line.lower().startswith("error")] or lines[-1:]
        fail("%s (%s)" % (hint, wanted[0].strip() if wanted else "no output"))


def main():
    if sys.version_info < MINIMUM:
        fail(
            "Python %d.%d is too old: Rocketstream needs 3.11 or newer;"
            " say which one to use with `make PYTHON=/path/to/python3.11 ...`"
            % sys.version_info[:2]
        )
    folder = sys.argv[1]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        sys.stdout.write("creating the environment in %s\n" % folder)
        run(
            [sys.executable, "-m", "venv", folder],
            "cannot create a virtual environment in %s: check that the disk has room and is"
            " writable, and that the venv module is installed" % folder,
        )
    sys.stdout.write("installing the pinned dependencies (a minute the first time)\n")
    sys.stdout.flush()
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pins = ["--constraint", os.path.join(root, "constraints.txt")]
    hint = "cannot install the dependencies: check the network, the package index and the disk"
    run([*pip, *pins, "hatchling", "editables"], hint)
    run([*pip, *pins, "--no-build-isolation", "--editable", root + "[dev]"], hint)
    with open(os.path.join(folder, ".ready"), "w") as stamp:
        stamp.write("ready\n")


if __name__ == "__main__":
    main()
