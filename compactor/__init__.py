"""To come: WAL objects → segments, retention, garbage collection. Until then no object is ever deleted."""
