"""The words of shardmill as frozen values: numpy and the standard library only."""
