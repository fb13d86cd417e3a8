"""Which broker coordinates what: slots that brokers claim, which of the claimants live, and records that one broker owns."""
