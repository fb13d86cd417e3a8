"""What turns topics into tables, checks them, watches them and replays them. `python -m spark.jobs` lists the jobs."""
