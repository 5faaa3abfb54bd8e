"""Replay recorded traces through the public API: ``python -m tests.replay FILE.npz …``.

A trace holds the data, initial weights, cohorts, minibatches and learning rates of a tiny federated run, and what an
author's program (or the specification) computed. The replay runs the same algorithm in the mode that the file's source
implies and prints, for every array, the largest difference. It exits with 1 if one exceeds its tolerance.

``trace`` reads a file, ``setups`` says for each algorithm and source how it is run here and which of our values each
array is compared with, ``run`` does it.
"""
