"""Spark on a cluster that asks for keys and TLS; the keys are in a file, and shown nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import CertificateFiles, make_test_certificates

pytestmark = [pytest.mark.spark, pytest.mark.long]

SECRETS = ("secret-of-sales", "token-of-sales")
ACCOUNTS = """accounts:
- accessKey: salesdesk
  secretKey: secret-of-sales
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return make_test_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, made: CertificateFiles
) -> Iterator[EmbeddedCluster]:
    accounts = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    with EmbeddedCluster(acl=accounts, tls=made.server_tls(mode="enforcing")) as cluster:
        cluster.create_topic("ledger", queues=2)
        yield cluster


@pytest.fixture
def options(guarded: EmbeddedCluster, made: CertificateFiles) -> dict[str, str]:
    return {
        "nameServer": guarded.namesrv_addr, "topic": "ledger", "useTls": "true",
        "tlsCaFile": str(made.ca_file),
    }  # fmt: skip


def write(spark: Any, options: dict[str, str]) -> None:
    rows = spark.createDataFrame([(b"one",), (b"two",)], "body binary")
    rows.write.format("rocketmq").mode("append").options(**options).save()


def test_spark_signs_with_the_keys_of_a_file(
    spark: Any, options: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "keys.yml"
    file.write_text("accessKey: salesdesk\nsecretKey: secret-of-sales\n")
    signed = options | {"keyFile": str(file)}
    write(spark, signed)
    bodies = [bytes(row.body) for row in _read(spark, signed).collect()]
    assert sorted(bodies) == [b"one", b"two"]
    with pytest.raises(Exception, match="No accessKey is configured"):
        _read(spark, options | {"retryTimeoutMs": "0"}).collect()


def test_keys_given_as_options_are_not_in_plans(
    spark: Any, options: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"accessKey": "salesdesk", "secretKey": SECRETS[0], "securityToken": SECRETS[1]}
    frame = _read(spark, options | keys)
    frame.explain(True)
    stream = spark.readStream.format("rocketmq").options(**options, **keys).load().select("body")
    query = (
        stream.writeStream.format("rocketmq")
        .options(**options | keys | {"topic": "copies"})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(60)
        query.explain(True)
        shown = [str(query.lastProgress), capsys.readouterr().out]
    finally:
        query.stop()
    shown.append(str(spark.sparkContext.getConf().getAll()))
    for file in (tmp_path / "checkpoint").rglob("*"):
        if file.is_file():
            shown.append(file.read_bytes().decode("utf-8", "replace"))
    assert "rocketmq" in shown[1].lower()
    assert [text for text in shown for secret in SECRETS if secret in text] == []


def _read(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("rocketmq").options(**options).load().select("body")
