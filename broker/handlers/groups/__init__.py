"""The APIs of consumer groups and their offsets."""
