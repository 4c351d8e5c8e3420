"""The corpus as training data: transcripts become rows of JSONL or parquet."""
