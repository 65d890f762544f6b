"""The speech pipeline: every stage of a recipe is one verb of ``python -m asr``."""
