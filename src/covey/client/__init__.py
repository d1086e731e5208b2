"""What a client computes."""
