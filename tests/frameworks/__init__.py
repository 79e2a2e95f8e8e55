"""Other frameworks over RocketMQ: what each promises its users, kept by our client."""
