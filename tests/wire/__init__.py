"""Promise: the bytes of RocketMQ's protocol, read and written."""
