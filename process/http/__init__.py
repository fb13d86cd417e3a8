"""The HTTP side of a broker: health, metrics, facts."""
