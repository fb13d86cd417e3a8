"""Which broker coordinates what: slots that brokers claim, and which of the claimants live."""
