"""Promise: progress of groups as tables, and of queries as events."""
