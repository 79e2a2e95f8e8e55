"""The parts of the dashboard that decide something, without a server."""
