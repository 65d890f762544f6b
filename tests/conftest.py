"""The tests run as the stages do: one thread a process, since processes are what runs in parallel.

With two, the last bits of features depend on how busy the machine is, and everything takes longer.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
