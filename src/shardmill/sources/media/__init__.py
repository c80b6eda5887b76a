"""The bytes of media that rows refer to: files, members, values, objects and downloads."""
