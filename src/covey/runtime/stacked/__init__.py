"""The stacked runtime: a whole cohort, and a whole sweep, trained at once on one device."""
