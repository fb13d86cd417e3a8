"""The metadata store on Oxia: docs/internals/adr/0006 says why the client is our own. gRPC and protobuf are imported nowhere else."""
