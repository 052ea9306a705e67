"""What `make bench` measures, what it was in former commits, and whether a figure has fallen for good.

A benchmark that takes part has a table `FIGURES`: the name of a figure, which is a piece of work, to its sides, `OURS`
and peers.  A side is a function that prepares the work and returns another, which does it once and returns microseconds
of CPU time a piece; or None, where a peer or a file is not here.  `MODULES` in `sides` lists these benchmarks.

Read `history` first: what a record is, and the rule by which continuous integration fails.  `sides` runs the sides of a
figure in turns, each in a process of its own, and `page` writes the table and the plot of the page of speeds.
"""
