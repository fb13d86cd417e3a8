"""The APIs that append, read and trim records."""
