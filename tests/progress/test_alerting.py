"""Which changes are told, and how often: each that lasts, once."""

from __future__ import annotations

import pytest

from rocketstream.admin.state import ClusterState, GroupVerdict, Verdict
from rocketstream.errors import ConfigurationError
from rocketstream.testing.clock import START_MS
from rocketstream.watch import BrokerDown, Outage, Update
from rocketstream.watch.alerting import Alerting, Event, Notice, Rule, read_config
from rocketstream.watch.windows import Gap
from tests.kits.states import cluster, group, queue

OPS = ("ops",)
MINUTE_MS = 60_000


class Play:
    """Sweeps ten seconds apart."""

    def __init__(self, alerting: Alerting) -> None:
        self.alerting = alerting
        self.now_ms = START_MS
        self.told: list[Notice] = []
        self.gap: Gap | None = None

    def see(
        self, verdict: Verdict | None, seconds: int, name: str = "billing", outage: bool = False
    ) -> list[Event]:
        """Let a group have a verdict for so long; return what was told meanwhile."""
        before = len(self.told)
        for _ in range(seconds // 10):
            self.now_ms += 10_000
            state = self.state(name)
            verdicts = {} if verdict is None else {name: GroupVerdict(name, verdict, "because")}
            down = Outage(START_MS, "refused", 1) if outage else None
            update = Update(state, verdicts, outage=down, gap=self.gap)
            self.told += self.alerting.step(update, self.now_ms)
        return [notice.event for notice in self.told[before:]]

    def stood_still(self, seconds: int) -> None:
        """Have nobody watch for so long."""
        self.gap = Gap(self.now_ms, self.now_ms + seconds * 1_000, "too long")
        self.now_ms = self.gap.until_ms

    def state(self, name: str) -> ClusterState:
        found = group(name, self.now_ms, queue(end=50, committed=8))
        return cluster(self.now_ms, found)


def settled(*rules: Rule, outages: tuple[str, ...] = OPS) -> Play:
    """Return a play past its first minutes."""
    play = Play(Alerting(rules or (Rule(OPS),), outages))
    assert play.see(Verdict.OK, 600) == []
    return play


def test_a_change_that_lasts_is_told_once_and_its_end_too() -> None:
    play = settled()
    assert play.see(Verdict.STALLED, 50) == []
    assert play.see(Verdict.STALLED, 600) == [Event.RAISED]
    assert play.see(Verdict.OK, 50) == []
    assert play.see(Verdict.OK, 600) == [Event.RECOVERED]
    raised, recovered = play.told
    assert (raised.group, raised.verdict, raised.before) == ("billing", Verdict.STALLED, None)
    assert (raised.lag, raised.sentence, raised.webhooks) == (42, "because", OPS)
    assert (recovered.verdict, recovered.before) == (Verdict.OK, Verdict.STALLED)


def test_one_that_flickers_is_not_told() -> None:
    play = settled()
    for _ in range(20):
        assert play.see(Verdict.STALLED, 50) == []
        assert play.see(Verdict.OK, 50) == []


def test_from_bad_to_worse_is_a_change() -> None:
    play = settled()
    play.see(Verdict.FALLING_BEHIND, 100)
    assert play.see(Verdict.STOPPED, 100) == [Event.CHANGED]
    assert play.told[-1].before is Verdict.FALLING_BEHIND


def test_unknown_ends_nothing() -> None:
    play = settled()
    play.see(Verdict.STALLED, 100)
    assert play.see(Verdict.UNKNOWN, 600) == []
    assert play.see(Verdict.STALLED, 600) == []
    assert play.see(Verdict.OK, 100) == [Event.RECOVERED]


def test_catching_up_is_told_and_the_trouble_is_over_only_with_the_last_message() -> None:
    """It may take an hour, and the pace may drop: an incident is closed too early otherwise."""
    play = settled()
    play.see(Verdict.STALLED, 100)
    assert play.see(Verdict.CATCHING_UP, 600) == [Event.CATCHING_UP]
    assert play.see(Verdict.UNKNOWN, 100) == []
    assert play.see(Verdict.STALLED, 100) == [Event.CHANGED]
    play.see(Verdict.CATCHING_UP, 100)
    assert play.see(Verdict.OK, 600) == [Event.RECOVERED]


def test_two_bad_verdicts_in_turn_are_one_trouble() -> None:
    """Which of them a group has may change with every look into its members."""
    play = settled()
    told = [event for _ in range(5) for event in (
        *play.see(Verdict.STALLED, 120), *play.see(Verdict.PINNED, 120),
    )]  # fmt: skip
    assert told == [Event.RAISED, Event.CHANGED]
    assert play.told[-1].verdict is Verdict.PINNED, "the more urgent one"
    assert play.see(Verdict.FALLING_BEHIND, 400) == [Event.CHANGED], "which lasts"


def test_a_broker_that_does_not_answer_is_one_notice_and_its_return_another() -> None:
    play = settled()
    down = (BrokerDown("broker-a", play.now_ms, "no answer within 5000 ms"),)

    def sweeps(seconds: int, found: tuple[BrokerDown, ...]) -> list[Notice]:
        told: list[Notice] = []
        for _ in range(seconds // 10):
            play.now_ms += 10_000
            told += play.alerting.step(Update(play.state("billing"), {}, down=found), play.now_ms)
        return told

    assert sweeps(50, down) == []
    (told,) = sweeps(600, down)
    assert (told.event, told.group, told.webhooks) == (Event.BROKER_DOWN, None, OPS)
    assert told.broker == "broker-a"
    assert told.sentence == "Broker broker-a does not answer: no answer within 5000 ms"
    (back,) = sweeps(100, ())
    assert (back.event, back.sentence) == (Event.BROKER_BACK, "Broker broker-a answers again.")
    assert back.broker == "broker-a"


def test_clock_that_is_set_back_delays_no_notice_by_more_than_its_hold() -> None:
    play = settled()
    play.see(Verdict.STALLED, 50)
    play.now_ms -= 60 * MINUTE_MS
    assert play.see(Verdict.STALLED, 100) == [Event.RAISED]
    play.now_ms -= 60 * MINUTE_MS
    play.see(Verdict.OK, 50)
    play.now_ms -= 60 * MINUTE_MS
    assert play.see(Verdict.OK, 600) == [Event.RECOVERED]
    assert play.now_ms < START_MS, "the outage began later"
    assert play.see(Verdict.OK, 100, outage=True) == [Event.OUTAGE]


def test_after_a_standstill_it_takes_its_time_as_at_the_start() -> None:
    """A window that only begins shows no trouble: its OK is no recovery."""
    play = settled()
    assert play.see(Verdict.FAILING, 100) == [Event.RAISED]
    play.stood_still(3_600)
    assert play.see(Verdict.OK, 120) == []
    assert play.see(Verdict.FAILING, 600) == []
    assert play.see(Verdict.OK, 300) == [Event.RECOVERED], "it is watched for long again"


def test_what_was_seen_once_before_a_standstill_and_once_after_has_not_lasted() -> None:
    """A laptop's network goes to sleep before it and wakes after it."""
    play = settled()
    play.see(Verdict.STALLED, 10)
    play.stood_still(3_600)
    assert play.see(Verdict.STALLED, 50) == []
    play.see(Verdict.UNKNOWN, 10, outage=True)
    play.stood_still(3_600)
    assert play.see(Verdict.UNKNOWN, 50, outage=True) == []
    assert play.see(Verdict.UNKNOWN, 50, outage=True) == [Event.OUTAGE]


def test_an_outage_that_was_found_before_a_standstill_is_held_from_when_it_was_told() -> None:
    play = settled()
    outage = Update(play.state("billing"), {}, outage=Outage(play.now_ms - 3_600_000, "refused", 1))
    assert play.alerting.step(outage, play.now_ms) == []


def test_it_is_told_again_as_often_as_the_rule_says() -> None:
    play = settled(Rule(OPS, repeat_ms=10 * MINUTE_MS))
    assert play.see(Verdict.STALLED, 1_300) == [Event.RAISED, Event.REPEATED, Event.REPEATED]


def test_the_first_rule_that_is_for_a_group_counts() -> None:
    quiet = Rule(("night",), ("billing-*",), ("billing-test",), (Verdict.STOPPED,), hold_ms=0)
    play = settled(quiet, Rule(OPS, ("billing*",), hold_ms=0))
    assert play.see(Verdict.STALLED, 10, "billing-eu") == []
    assert play.see(Verdict.STOPPED, 10, "billing-eu") == [Event.RAISED]
    assert play.told[-1].webhooks == ("night",)
    assert play.see(Verdict.STALLED, 10, "billing-test") == [Event.RAISED]
    assert play.told[-1].webhooks == OPS
    assert play.see(Verdict.STALLED, 100, "crm") == []


def test_an_outage_is_one_notice_and_not_one_a_group() -> None:
    play = settled()
    assert play.see(Verdict.UNKNOWN, 300, outage=True) == [Event.OUTAGE]
    assert "refused" in play.told[-1].sentence
    assert play.see(Verdict.OK, 300) == [Event.OUTAGE_OVER]
    assert settled(outages=()).see(Verdict.UNKNOWN, 300, outage=True) == []


def test_what_stands_is_not_told_again_after_a_restart() -> None:
    play = settled()
    play.see(Verdict.STALLED, 100)
    after = Alerting([Rule(OPS)])
    after.remember(play.alerting.remembered())
    again = Play(after)
    # A window that is only beginning shows no trouble for a while.
    assert again.see(Verdict.OK, 120) == []
    assert again.see(Verdict.STALLED, 600) == []
    assert again.see(Verdict.OK, 100) == [Event.RECOVERED]


def test_a_group_that_is_deleted_is_forgotten() -> None:
    play = settled()
    play.see(Verdict.STALLED, 100)
    play.see(None, 10)
    assert play.alerting.remembered() == {}
    assert play.see(Verdict.STALLED, 100) == [Event.RAISED]


def test_a_rule_may_do_without_recoveries() -> None:
    play = settled(Rule(OPS, recovered=False))
    play.see(Verdict.STALLED, 100)
    assert play.see(Verdict.OK, 100) == []
    assert play.see(Verdict.STALLED, 100) == [Event.RAISED]


WEBHOOK = {"name": "ops", "kind": "slack", "url": "https://hooks.example/T0/SECRET"}


def test_a_whole_file_is_understood() -> None:
    config = read_config(
        {
            "cluster": "east",
            "outages": ["ops"],
            "webhook": [
                WEBHOOK,
                {
                    "name": "ding",
                    "kind": "dingtalk",
                    "url_env": "DING_URL",
                    "secret_env": "DING_SECRET",
                    "headers_env": {"X-Token": "DING_SECRET"},
                },
            ],
            "rule": [
                {
                    "groups": ["a*"],
                    "except": ["ab"],
                    "verdicts": ["STOPPED", "UNKNOWN"],
                    "webhooks": ["ding"],
                    "hold_s": 1.5,
                    "repeat_s": 60,
                    "recovered": False,
                }
            ],
        },
        {"DING_URL": "http://ding.example/x", "DING_SECRET": "s3cr3t"},
    )
    assert config.webhooks["ding"].secret == "s3cr3t"
    assert config.webhooks["ding"].headers == {"X-Token": "s3cr3t"}
    assert config.outage_webhooks == ("ops",)
    (rule,) = config.rules
    assert rule == Rule(
        ("ding",), ("a*",), ("ab",), (Verdict.STOPPED, Verdict.UNKNOWN), 1_500, 60_000, False
    )
    for secret in ("SECRET", "s3cr3t", "ding.example"):
        assert secret not in repr(config)


def test_without_rules_everybody_is_told_of_everything_bad() -> None:
    config = read_config({"webhook": [WEBHOOK]}, {})
    assert config.rules == (Rule(OPS),)
    assert config.outage_webhooks == OPS


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "names no [[webhook]]"),
        ({"webhooks": []}, "'webhooks'; accepted are"),
        ({"webhook": {"name": "x"}}, "[[webhook]]"),
        ({"webhook": [{**WEBHOOK, "kind": "teams"}]}, "'teams'; accepted are generic, slack"),
        ({"webhook": [{**WEBHOOK, "uri": ""}]}, "'uri'"),
        ({"webhook": [{"name": "x"}]}, "needs a name, and url"),
        ({"webhook": [{**WEBHOOK, "url": "file:///etc/SECRET"}]}, "not an http:// or https://"),
        ({"webhook": [{**WEBHOOK, "url": "http://x/ SECRET"}]}, "not an http:// or https://"),
        ({"webhook": [{"name": "x", "url_env": "NOT_THERE"}]}, "NOT_THERE, which is not set"),
        ({"webhook": [{**WEBHOOK, "url_env": "X"}]}, "both url and url_env"),
        ({"webhook": [{**WEBHOOK, "headers": {"a": "b\r\nSECRET: 1"}}]}, "headers"),
        ({"webhook": [WEBHOOK, WEBHOOK]}, "two webhooks are called 'ops'"),
        ({"webhook": [WEBHOOK], "rule": [{"verdicts": ["BAD"]}]}, "'BAD'; accepted are"),
        ({"webhook": [WEBHOOK], "rule": [{"webhooks": ["x"]}]}, "not all in the file"),
        ({"webhook": [WEBHOOK], "rule": [{"hold_s": -1}]}, "hold_s of rule 1 is -1"),
        ({"webhook": [WEBHOOK], "rule": [{"groups": "a"}]}, 'must be a list like ["billing-*"]'),
        ({"webhook": [WEBHOOK], "rule": [{"recovered": 1}]}, "true or false"),
        ({"webhook": [WEBHOOK], "cluster": 5}, "cluster of the file must be a text"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_no_secret(
    document: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_config(document, {})
    assert said in error.value.message
    assert "SECRET" not in error.value.message
