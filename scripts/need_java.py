"""Say in one line what to do when Java 17 is missing; silent when it is there."""

import os
import re
import shutil
import subprocess
import sys


def java_path() -> str | None:
    """Return the java command Spark would use: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and os.path.exists(os.path.join(home, "bin", "java")):
        return os.path.join(home, "bin", "java")
    return shutil.which("java")


def complaint() -> str | None:
    """Return what is wrong with this machine's Java, or None."""
    advice = "install Java 17 (for example Eclipse Temurin 17) and set JAVA_HOME or PATH"
    path = java_path()
    if path is None:
        return f"Java is missing: {advice}"
    done = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None:
        return f"{path} does not answer `-version`: {advice}"
    if int(found.group(1)) < 17:
        return f"Java {found.group(1)} at {path} is too old: {advice}"
    return None


if __name__ == "__main__":
    problem = complaint()
    if problem:
        sys.exit(f"error: {problem}")
