"""Jobs: what a user asks for as one call (run, compare, analyze, describe, on demand, train an agent)."""
