"""`forebay debug`: looking into the stores of a cluster, read-only, while it runs."""
