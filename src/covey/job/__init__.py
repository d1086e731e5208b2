"""Jobs: the calls of the Python interface (run, compare, analyze, describe, on demand, train an agent)."""
