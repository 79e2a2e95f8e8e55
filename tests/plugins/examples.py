"""Property tests draw the same examples on every run, each in the time it takes.

Law: sets the profile, where no other was chosen before.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None, database=None)
if settings.get_current_profile_name() in ("default", "ci"):
    settings.load_profile("steady")
