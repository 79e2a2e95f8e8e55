"""A pytest plugin: every run draws the same examples, few schedules, and makes no failure smaller.

Law: nothing else; a change must be judged by the same tests each time, and quickly. What only a
later schedule than these shows counts as not noticed.
"""

from __future__ import annotations

import hypothesis
from hypothesis import HealthCheck, Phase, stateful
from hypothesis.stateful import RuleBasedStateMachine

PHASES = (Phase.explicit, Phase.generate)
# Some tests draw hundreds, for as many seconds: nearly all defects show in the first few.
SCHEDULES_MAX = 20

hypothesis.settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    deadline=None,
    phases=PHASES,
    suppress_health_check=(HealthCheck.too_slow,),
)
hypothesis.settings.load_profile("mutation")

_run_all = stateful.run_state_machine_as_test


def run_some(
    state_machine_factory: type[RuleBasedStateMachine],
    *,
    settings: hypothesis.settings | None = None,
    _min_steps: int = 0,
) -> None:
    """Run a state machine as a test of at most ``SCHEDULES_MAX`` schedules."""
    given = settings or state_machine_factory.TestCase.settings
    few = min(given.max_examples, SCHEDULES_MAX)
    given = hypothesis.settings(given, max_examples=few, phases=PHASES)
    _run_all(state_machine_factory, settings=given, _min_steps=_min_steps)


# Before any test takes it from there by name.
stateful.run_state_machine_as_test = run_some
