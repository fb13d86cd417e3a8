"""`forebay storage`: what is in the stores of a cluster and whether it is whole, read past the brokers, while they run."""
