"""`convert MODEL.onnx`: a language model that is recognized becomes a GGUF file; another graph is
data in a manifest, its constants in shards."""
