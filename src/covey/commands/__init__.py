"""The commands, each a thin layer over the Python function of the same name; `covey.cli` puts them together."""
