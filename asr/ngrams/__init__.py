"""N-gram language models: their probabilities, estimation, and files."""
