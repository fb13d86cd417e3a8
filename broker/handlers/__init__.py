"""One module per Kafka API, named as Kafka names it: accept (wire → values), work, answer (values → wire)."""
