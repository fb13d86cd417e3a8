module forebay/tests/compat/play

go 1.26
