"""Data that ship with the package: MNIST-5k (see LICENSE-mnist.md)."""
