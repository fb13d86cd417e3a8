"""`forebay spark …`: jobs of the data pipeline (spark/jobs)."""
