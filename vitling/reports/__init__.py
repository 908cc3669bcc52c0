"""Pages and plots. Nothing here knows what is shown."""
