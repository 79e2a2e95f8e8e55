"""Messages as Arrow columns: encoded for brokers, for Spark's sink and for producers alike."""
