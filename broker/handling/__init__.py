"""What handlers share: who asks, checks, answers that several APIs have in common."""
