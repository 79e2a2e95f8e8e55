"""Promise: traces, spans, hooks, rates and log lines."""
