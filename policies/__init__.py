"""Decisions: orders, gates, batching rules, the local policies made of them, routers, placement and offline batches.
Read `base` first, then `gates` and `local`.
"""
