"""A history of a messaging program's events, and a checker that says which promise it broke.

Pure: usable on a simulated run and on real processes alike. Collect events with ``Recorder`` (or
make them), hand them to ``check``.
"""

from rocketstream.testing.history.anomaly import Anomaly, AnomalyKind, Rules
from rocketstream.testing.history.checker import check
from rocketstream.testing.history.recorder import Recorder, Sending, place_of

__all__ = ["Anomaly", "AnomalyKind", "Recorder", "Rules", "Sending", "check", "place_of"]
