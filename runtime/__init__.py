"""What every process of Forebay stands on: clock, ids, supervision, the blocking pool, telemetry, limits of the process itself."""
