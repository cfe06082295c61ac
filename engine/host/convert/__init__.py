"""`convert`: a Hugging Face folder or a GGUF file becomes a GGUF file and its shards."""
