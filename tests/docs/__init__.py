"""The documentation, run."""
