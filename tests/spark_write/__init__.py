"""Promise: ``format("rocketmq")`` written: every row arrives, or is named."""
