"""Promise: lite topics of Apache 5.5."""
