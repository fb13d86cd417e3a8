"""`forebay compactor`: upkeep as a service of its own, once, or looked at."""
