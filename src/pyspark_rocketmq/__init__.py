"""Spark finds `format("rocketmq")` through this package; see DefaultSource."""
