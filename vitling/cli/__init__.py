"""The command line. Only what is in here prints, exits and names flags."""
