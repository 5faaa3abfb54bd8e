"""Benchmarks: four pieces of work, what they cost here, and what they would cost without federated learning."""
