"""Promise: pull and lite pull consumers lose nothing; and how brokers answer pulls."""
