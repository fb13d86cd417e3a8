"""What handlers share: the asker, checks, answers that several APIs have in common."""
