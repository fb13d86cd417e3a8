"""Processes that serve until they are stopped. `forebay serve --workers N` is N brokers on consecutive ports, under one supervisor.

serve        one broker and its HTTP side
compactor    one compactor and its HTTP side
companion    the compactor beside a broker or a supervisor
child        any program as a child, for demo and bench
plan         the settings of each worker, and what cannot be shared by several
worker       a worker's process and the parent of all, as the supervisor sees them
forking      that parent: imports once, forks each worker
supervisor   starts, restarts and stops workers
link         the supervisor, as a worker sees it
"""
