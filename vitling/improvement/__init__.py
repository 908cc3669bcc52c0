"""Finding out on the user's own data what makes a run better."""
