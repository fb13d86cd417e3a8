"""`forebay generate`: files for other programs, written from what this version knows."""
