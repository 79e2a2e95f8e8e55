"""Promise: start, shutdown, signals, forks, threads: what ends leaves nothing behind."""
