"""One algorithm, one file. See `base` for what a solver is and `registry` for how it is found."""
