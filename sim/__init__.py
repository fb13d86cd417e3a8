"""The real code of several brokers under virtual time and seeded faults, with a history checker (docs/internals/simulation.md)."""
