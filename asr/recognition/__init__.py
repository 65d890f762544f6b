"""What decoding is made of: beam search and its weights, streaming, word times, finished models."""
