"""The programs over the Spark connector, without Spark."""
