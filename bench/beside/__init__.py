"""The same loads on Apache Kafka and on Forebay, in turns: `python -m bench.beside`. See bench/README.md."""
