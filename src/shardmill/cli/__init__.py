"""The command line: one command makes one spec, one library call and one report."""
