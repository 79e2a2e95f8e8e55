"""The dashboard: as an application, and in a browser."""
