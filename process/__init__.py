"""What every process of Forebay needs: settings, health and metrics over HTTP, limits of the machine, stopping."""
