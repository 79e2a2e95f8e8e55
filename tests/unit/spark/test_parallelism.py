"""How many tasks Spark runs at a time, from what its driver was started with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.spark.parallelism import parallelism, read_properties, settings

CORES = 64
"""Of the driver's machine: the answer to nothing but ``local[*]``."""


@pytest.mark.parametrize(
    ("conf", "tasks"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[3,5]"}, 3),
        ({"spark.master": "local[*]"}, CORES),
        ({"spark.master": "local[3]", "spark.default.parallelism": "7"}, 7),
        ({"spark.master": "local-cluster[2,3,1024]"}, 6),
        ({"spark.master": "spark://h:7077", "spark.cores.max": "12"}, 12),
        ({"spark.master": "spark://h:7077"}, None),
        ({"spark.master": "yarn", "spark.executor.instances": "5"}, 5),
        (
            {
                "spark.master": "k8s://h",
                "spark.executor.instances": "5",
                "spark.executor.cores": "4",
            },
            20,
        ),
        ({"spark.executor.instances": "5", "spark.dynamicAllocation.enabled": "true"}, None),
        ({"spark.executor.instances": "many"}, None),
        ({}, None),
    ],
)
def test_parallelism_follows_sparks_own_rules(conf: dict[str, str], tasks: int | None) -> None:
    """What cannot be known is not guessed from the driver's machine."""
    assert parallelism(conf, CORES) == tasks


def test_a_command_line_says_it_in_many_ways() -> None:
    """As spark-submit takes it; the last word counts."""
    command = (
        "java -cp x -Dspark.app.name=n org.apache.spark.deploy.SparkSubmit --master=local[1] "
        "--conf spark.master=local[2] -c spark.default.parallelism=9 --num-executors 4 "
        "--conf=spark.executor.cores=2 --properties-file /p app.py --conf"
    )
    assert settings(command.split()) == {
        "spark.app.name": "n", "spark.master": "local[2]", "spark.default.parallelism": "9",
        "spark.executor.instances": "4", "spark.executor.cores": "2", "--properties-file": "/p",
        "": "",
    }  # fmt: skip


def test_defaults_are_read_as_spark_writes_them() -> None:
    """Blanks or an equals sign; comments are none."""
    text = "# spark.master local[9]\nspark.master   local[4]\nspark.a=b = c\n\nspark.alone\n"
    assert read_properties(text) == {
        "spark.master": "local[4]",
        "spark.a": "b = c",
        "spark.alone": "",
    }


PROGRAM = (
    "from rocketstream.spark.parallelism import default_parallelism; print(default_parallelism())"
)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["org.apache.spark.deploy.SparkSubmit", "--conf", "spark.master=local[11]"], "11"),
        (["org.apache.spark.deploy.SparkSubmit"], "13"),
        (["org.example.Other", "--conf", "spark.master=local[11]"], "None"),
    ],
)
def test_a_child_of_a_driver_finds_its_command(
    tmp_path: Path, words: list[str], printed: str
) -> None:
    """Through whatever stands between them; with the cluster's defaults behind it."""
    (tmp_path / "spark-defaults.conf").write_text("spark.default.parallelism 13\n")
    if printed == "11":
        words = [*words, "--conf", "spark.default.parallelism=11"]
    between = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PROGRAM!r}], check=True)"
    )
    driver = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {between!r}], check=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", driver, *words],
        env={"SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == printed
