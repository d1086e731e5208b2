"""Comparisons: methods x settings x seeds."""
