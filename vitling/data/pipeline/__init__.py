"""From labelled images to batches: decoded, fitted to a size, normalised, shuffled."""
