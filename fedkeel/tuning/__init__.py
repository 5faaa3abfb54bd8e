"""Tuning with equal budgets, and the leaderboard that rests on it.

What is searched stands in ``spaces.toml``, what is contested in ``leaderboard.toml``; nothing here knows an algorithm
by name.
"""
