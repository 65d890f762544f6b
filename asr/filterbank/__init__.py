"""Features: log-mel filterbanks, where they are stored, and how they are read."""
