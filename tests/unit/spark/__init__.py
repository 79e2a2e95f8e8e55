"""The Spark source without Spark: options, offsets, planning, pulling, decoding."""
