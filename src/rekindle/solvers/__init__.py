"""One algorithm, one file. See `problem` for what a solver is and `registry` for how it is found."""
