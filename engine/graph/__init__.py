"""Models that come as graphs of operators: read, changed by passes, and recorded as plans."""
