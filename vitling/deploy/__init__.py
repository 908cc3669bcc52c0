"""A trained model in use: predictions, exports, a local page."""
