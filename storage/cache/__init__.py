"""Bytes of objects in memory: blocks that were read, and calls that are shared."""
