"""What every process of Forebay needs: clock, ids, supervision, the blocking pool, telemetry, limits of the process itself."""
