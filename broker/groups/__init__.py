"""Consumer groups: who is a member, what was committed, and which broker says so."""
