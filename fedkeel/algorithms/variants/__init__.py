"""What print and programs say differently from the default reading of a paper.

A paper's own file has the default reading and nothing else. ``readings`` holds the parameters that ask for another one;
as soon as one of them is set (by itself or by ``mode``), the algorithm becomes the subclass here that computes it.
"""
