"""Model files: the GGUF header and the quantized blocks."""
