"""The sink of the connector, part by part, without Spark."""
