"""Plans for the parts of a model that cannot be captured whole: ways to run a part, and the division of one goal."""
