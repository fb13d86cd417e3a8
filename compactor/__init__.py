"""Upkeep of a Forebay cluster: entries become segments. Retention and garbage collection are to come: no object is ever deleted."""
