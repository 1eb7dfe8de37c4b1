"""Four programs of several processes, each over this fabric and over gRPC; both calculate what `nets` has."""
