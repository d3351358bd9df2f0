"""Choice of the implementation of a region: candidates are estimated and timed, the winner is kept.

In: regions with their programs. Out: weight formats, schedules, and alternatives of torch and other libraries. Read
`estimate.py`, `autotune.py` and `site.py`, then one file for each kind of candidate.
"""
