"""The embedded metadata store, on one SQLite file."""
