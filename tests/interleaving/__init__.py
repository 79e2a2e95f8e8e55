"""Promise: calls of several threads at once end as documented, whichever step goes first.

``python -m tests.interleaving --seeds 2000`` looks for more; ``--replay SEED --scene NAME`` plays
one again.
"""
