"""What others install: an npm package for their pages, and a Python wheel with a command."""
