"""`forebay cost`: what a cluster's object store costs, or would cost."""
