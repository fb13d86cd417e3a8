"""`forebay serve --workers N`: N brokers in processes of their own, on consecutive ports, under one supervisor.

plan         the settings of each worker, and what cannot be shared by several
backoff      how long a worker that died waits before it is started again
lines        the words of a worker, cut into lines that say whose they are
process      one worker's process, as the supervisor sees it
forking      the parent of the workers: imports once, forks each of them
parent       that parent, as the supervisor sees it
supervisor   starts, restarts and stops them
serving      settings → a supervisor
link         the supervisor, as a worker sees it
"""
