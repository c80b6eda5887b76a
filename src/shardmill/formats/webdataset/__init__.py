"""shardmill.formats.webdataset."""
