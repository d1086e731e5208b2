"""Speed of Covey and of its peers, side by side."""
