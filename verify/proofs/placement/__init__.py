"""Proofs and refutations about Aladdin's placement."""
