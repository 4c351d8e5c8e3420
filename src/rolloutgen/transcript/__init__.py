"""transcript.jsonl: everything that was said between a scaffold and the model in one attempt."""
