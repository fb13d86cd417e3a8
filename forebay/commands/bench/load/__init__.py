"""`forebay bench load`: a cluster under a written load, and afterwards the proof that client, broker and log agree."""
