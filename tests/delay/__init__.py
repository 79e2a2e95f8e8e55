"""Promise: a delayed message is never early, and never lost."""
