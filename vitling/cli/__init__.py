"""The command line. Only what is in here prints, exits and names flags; torch is imported inside functions, so that help is quick."""
