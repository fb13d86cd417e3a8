"""The stores of production on one machine, without containers: for tests and for `make services`. Not part of the wheel; see README.md.

build       Oxia and versitygw as programs, each built once by Go and kept in a cache
lock        one process at a time
process     a server process that a test may kill, pause and start again; it never outlives the test run
ports       ports nobody listens on
oxia        `OxiaServer`, `running_oxia`
versitygw   `S3Server`, `running_s3`
readiness   when a server answers, not only listens
background  servers that outlive the command that starts them, by pid file
"""
