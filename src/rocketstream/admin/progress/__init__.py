"""The progress of groups: sweeps over a cluster, and single groups.

Law: only asks; what answers mean is decided in ``core``.
"""
