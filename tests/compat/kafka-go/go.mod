module forebay/tests/compat/kafka-go

go 1.26

require (
	forebay/tests/compat/play v0.0.0
	github.com/segmentio/kafka-go v0.4.51
)

require (
	github.com/klauspost/compress v1.15.9 // indirect
	github.com/pierrec/lz4/v4 v4.1.15 // indirect
)

replace forebay/tests/compat/play => ../go
