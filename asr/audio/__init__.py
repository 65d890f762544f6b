"""Audio: what an utterance's samples are, decoded whole or in parts, and what makes it unfit."""
