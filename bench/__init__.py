"""Benchmarks: what a broker spends per GiB and per request. See bench/README.md; nothing here is asserted by a test."""
