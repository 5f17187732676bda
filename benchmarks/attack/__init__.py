"""Attack the program: shared runs that carry code, damaged files, bad inputs, faults and kills; see `__main__`."""
