"""What exists and what is meant: values and pure functions that policies, proofs and engines share."""
