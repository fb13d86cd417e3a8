"""Bytes at rest, one module per kind: each with a picture, a format number and a round-trip test."""
