"""Where the runs of a study are trained."""
