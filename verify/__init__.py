"""What is shown: proofs about the shipping kernels, counterexamples and property-based suites."""
