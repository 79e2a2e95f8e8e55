"""Promise: ``ingest``, ``backfill`` and ``compact``: topics landed as tables."""
