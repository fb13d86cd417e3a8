"""What every process stands on: clock, ids, supervision, the blocking pool, telemetry, limits of the process itself."""
