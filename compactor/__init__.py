"""Upkeep of a Forebay cluster: entries become segments, old records go, and objects that nothing refers to are deleted."""
