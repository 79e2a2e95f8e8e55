"""Promise: a broker's files are Apache's bytes, on the disk when acknowledged, deleted when old."""
