"""One command per file: a function whose signature is the command line. No logic lives here, and torch is imported late."""
