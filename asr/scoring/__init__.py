"""What scoring is made of: transcripts, their alignment, counts of errors, their uncertainty."""
