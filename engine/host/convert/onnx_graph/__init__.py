"""`convert MODEL.onnx`: the graph as data in a manifest, its constants in shards."""
