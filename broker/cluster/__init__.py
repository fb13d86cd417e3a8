"""The broker among others: which is named leader, which coordinates what, which lives, and how one registers and leaves."""
