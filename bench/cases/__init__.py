"""The cases, written out in the order they run."""
