"""The log's HTTP API: JSON over the append and read paths that Kafka's clients use (docs/reference/http.md)."""
