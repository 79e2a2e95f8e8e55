"""Clusters, topics and programs for the tests of Spark."""
