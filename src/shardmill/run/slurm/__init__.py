"""shardmill.run.slurm."""
