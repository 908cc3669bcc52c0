"""What to train on some data and why: a survey of it, rules, the speed of this machine."""
