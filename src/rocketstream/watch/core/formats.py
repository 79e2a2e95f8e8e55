"""Notices in the formats of the chat services.

Pure: a notice in, a body and its signature out.

Law: names are shown as text, never as markup.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from rocketstream.watch.core.alerting import Event, Notice

TEXT_BYTES_MAX: Final = 3_800
"""Most bytes of one message: WeCom refuses more than 4,096."""


class Kind(StrEnum):
    """The service that receives a notice."""

    GENERIC = "generic"
    SLACK = "slack"
    DINGTALK = "dingtalk"
    FEISHU = "feishu"
    WECOM = "wecom"


def title(notice: Notice) -> str:
    """Return the title of a notice, a few words."""
    group = notice.group
    verdict = "" if notice.verdict is None else notice.verdict.value
    if notice.event is Event.TEST:
        return "Test of a webhook"
    if notice.event is Event.OUTAGE:
        return "The cluster does not answer"
    if notice.event is Event.OUTAGE_OVER:
        return "The cluster answers again"
    if notice.event in (Event.BROKER_DOWN, Event.BROKER_BACK):
        return notice.sentence.split(":")[0].rstrip(".")
    if notice.event is Event.RECOVERED:
        return f"{group}: {verdict} again"
    if notice.event is Event.REPEATED:
        return f"{group}: still {verdict}"
    return f"{group}: {verdict}"


def lines(notice: Notice, where: str) -> list[str]:
    """Return the lines of a notice below its title."""
    found = [notice.sentence]
    figures: list[str] = []
    if notice.group is not None:
        figures.append("lag unknown" if notice.lag is None else f"lag {notice.lag:,}")
        if notice.time_lag_ms is not None:
            figures.append(f"time lag {notice.time_lag_ms / 1000:,.0f} s")
    if notice.since_ms is not None:
        figures.append(f"since {_utc(notice.since_ms)}")
    if notice.before is not None and notice.before is not notice.verdict:
        figures.append(f"before: {notice.before.value}")
    if figures:
        found.append(", ".join(figures))
    found.append(f"cluster of {where}")
    return found


def body(kind: Kind, notice: Notice, where: str) -> dict[str, Any]:
    """Return the JSON body a service expects.

    Args:
        where: the cluster's name.
    """
    return _BODIES[kind](notice, where)


def signature(kind: Kind, secret: str, now_ms: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the secret's additions to the query and to the body."""
    if kind is Kind.DINGTALK:
        stamp = str(now_ms)
        digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
        return {"timestamp": stamp, "sign": base64.b64encode(digest).decode()}, {}
    if kind is Kind.FEISHU:
        stamp = str(now_ms // 1000)
        digest = hmac.new(f"{stamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
        return {}, {"timestamp": stamp, "sign": base64.b64encode(digest).decode()}
    return {}, {}


def refusal(kind: Kind, answer: bytes) -> str | None:
    """Return why a service that answered 200 refused a message; None where it took it."""
    if kind in (Kind.GENERIC, Kind.SLACK):
        return None
    try:
        told = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(told, Mapping):
        return None
    code = told.get("code", told.get("StatusCode")) if kind is Kind.FEISHU else told.get("errcode")
    if code in (0, None):
        return None
    text = told.get("msg") if kind is Kind.FEISHU else told.get("errmsg")
    return f"code {code}: {text}"


def _generic(notice: Notice, where: str) -> dict[str, Any]:
    return {
        "event": notice.event.value,
        "title": title(notice),
        "sentence": notice.sentence,
        "cluster": where,
        "group": notice.group,
        "verdict": None if notice.verdict is None else notice.verdict.value,
        "before": None if notice.before is None else notice.before.value,
        "at": _utc(notice.at_ms),
        "atMs": notice.at_ms,
        "since": None if notice.since_ms is None else _utc(notice.since_ms),
        "sinceMs": notice.since_ms,
        "lag": notice.lag,
        "timeLagMs": notice.time_lag_ms,
    }


def _slack(notice: Notice, where: str) -> dict[str, Any]:
    # The three characters Slack escapes; everything else is plain text where mrkdwn is off.
    escape = _escaper({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    rest = "\n".join(escape(line) for line in lines(notice, where))
    return {
        "text": _short(f"{escape(title(notice))}\n{rest}"),
        "mrkdwn": False,
        "unfurl_links": False,
    }


def _dingtalk(notice: Notice, where: str) -> dict[str, Any]:
    return {
        "msgtype": "text",
        "text": {"content": _short("\n".join([title(notice), *lines(notice, where)]))},
    }


def _feishu(notice: Notice, where: str) -> dict[str, Any]:
    # The only tag its texts know is <at …>, which would notify people.
    escape = _escaper({"<": "＜", ">": "＞"})
    text = "\n".join(escape(line) for line in [title(notice), *lines(notice, where)])
    return {"msg_type": "text", "content": {"text": _short(text)}}


def _wecom(notice: Notice, where: str) -> dict[str, Any]:
    return {
        "msgtype": "text",
        "text": {"content": _short("\n".join([title(notice), *lines(notice, where)]))},
    }


_BODIES: Final[dict[Kind, Callable[[Notice, str], dict[str, Any]]]] = {
    Kind.GENERIC: _generic,
    Kind.SLACK: _slack,
    Kind.DINGTALK: _dingtalk,
    Kind.FEISHU: _feishu,
    Kind.WECOM: _wecom,
}


def _escaper(table: Mapping[str, str]) -> Callable[[str], str]:
    changed = str.maketrans(dict(table))
    return lambda text: text.translate(changed)


def _short(text: str) -> str:
    """Return a text short enough for every service; a text that was cut says so at its end."""
    data = text.encode("utf-8", "replace")
    if len(data) <= TEXT_BYTES_MAX:
        return data.decode()
    return data[:TEXT_BYTES_MAX].decode(errors="ignore") + " … (cut)"


def _utc(at_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")
