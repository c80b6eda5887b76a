"""Runs stages: plans the units, hands them out, commits what is finished, and can be killed."""
