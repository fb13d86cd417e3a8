"""The leaderless log: gather, upload, decide, commit, acknowledge; and read."""
