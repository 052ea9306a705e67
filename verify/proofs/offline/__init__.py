"""Proofs about prefix groups and batching thresholds."""
