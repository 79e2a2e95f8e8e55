"""A pytest plugin: every run draws the same examples, and a failure is not made smaller.

Law: nothing else; a change must be judged by the same tests each time, and quickly.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow,),
)
settings.load_profile("mutation")
