"""Real sites: the same rounds over a network. Flower carries the messages; everything that knows it is in here."""
