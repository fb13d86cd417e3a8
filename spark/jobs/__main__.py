"""`python -m spark.jobs NAME …`: run a job. Without a name, list them."""

import sys

from spark.jobs.named import run_named

if __name__ == "__main__":
    sys.exit(run_named(sys.argv[1:]))
