"""Calls between processes, beside torch RPC and gRPC with pickle in the same run."""
