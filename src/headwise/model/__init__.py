"""Models and everything that touches transformers: loading, reaching heads, running gated batches."""
