"""Waiting calls: why they wait, and how decisions on them are made and recorded."""
