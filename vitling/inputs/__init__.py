"""What comes from outside: types with ranges, documents read as data, arguments of networks, and the memory there is for it."""
