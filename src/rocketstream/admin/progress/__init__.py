"""How far groups are: sweeps over a cluster, and single groups.

Law: questions only; what answers mean is decided in ``core``.
"""
