"""How late a record is acknowledged, from a little load to more than a broker takes: see bench/README.md."""
