"""Speed benchmarks of Covey and other frameworks."""
