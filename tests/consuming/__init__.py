"""Promise: every message reaches a listener at least once, and counts when it has finished."""
