"""Promise: a push consumer whose listener Spark executes."""
