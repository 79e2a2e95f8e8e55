"""The repository's own rules, checked as tests."""
