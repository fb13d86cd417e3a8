"""For the processes that tests start: kio imports hypothesis where it is installed, which no user has, and that takes most of a start."""

raise ImportError("hypothesis is for tests")
