"""Graph + goal -> plan: asks the solver, lets the judge score, picks, certifies; plans on disk. Imports no torch."""
