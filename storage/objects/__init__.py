"""The object-store port and its implementations. Concrete stores are named once, in storage/opening.py."""
