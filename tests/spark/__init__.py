"""The data source on a real Spark, reading from an embedded cluster."""
