"""One thread per test process: two processes of two threads each, on two cores, wait for each other most of the time."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
