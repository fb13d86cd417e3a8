"""Whether the stores hold what they should: a reading of metadata and objects that shares no code with the log but the formats."""
