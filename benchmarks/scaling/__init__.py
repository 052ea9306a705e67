"""What a growing cluster costs its scheduler: rows of runs, and what states take. `benchmarks.scale` prints both."""
