"""What stands behind `import shardmill as sm`; import the names from there."""
