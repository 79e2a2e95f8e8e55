"""Promise: Spark, Java and Python found; the package shipped; keys and processes."""
