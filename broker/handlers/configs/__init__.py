"""The APIs of configs, quotas, credentials and access."""
