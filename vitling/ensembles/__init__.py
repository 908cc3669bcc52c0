"""From several models one: folds trained in turn, joined into an ensemble, distilled into a single network."""
