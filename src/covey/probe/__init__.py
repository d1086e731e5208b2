"""Probes: what a client measures besides its update."""
