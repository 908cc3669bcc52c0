"""What comes from outside, checked: values and their ranges, documents, arguments of networks, sizes that memory must hold."""
