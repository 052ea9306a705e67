"""Proofs about routers, most of them on symbolic integers. Read `load_based` first."""
