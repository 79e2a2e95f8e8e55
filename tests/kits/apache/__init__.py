"""Apache RocketMQ as a referee."""
