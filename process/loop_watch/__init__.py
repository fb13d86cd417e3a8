"""What holds the event loop: noticed, timed, named."""
