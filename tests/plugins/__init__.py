"""Fixtures and checks shared by the suites."""
