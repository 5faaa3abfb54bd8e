"""The search for a method of our own: what was tried beside Keel, on held-out samples only."""
