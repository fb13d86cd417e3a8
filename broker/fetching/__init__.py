"""What long polls wait for."""
