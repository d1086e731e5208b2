"""Pages: self-contained HTML about runs, comparisons, analyses and on-demand models."""
