"""Servers that fail on purpose, in front of real ones."""
