"""The progress of groups: sweeps over a cluster, and single groups."""
