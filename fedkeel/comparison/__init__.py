"""Runs beside each other, as tables."""
