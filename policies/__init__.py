"""What is decided: one policy, gate, order or batching rule per file."""
