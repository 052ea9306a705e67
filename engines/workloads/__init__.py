"""Workloads: trace files read and written, and generators of the workloads that the papers use."""
