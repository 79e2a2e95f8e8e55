"""Promise: reading ``format("rocketmq")`` gives exact rows, whatever happens meanwhile."""
