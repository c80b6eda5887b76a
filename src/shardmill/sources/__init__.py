"""Where rows come from: tables, folders, tars, NeMo's meta file; with shapes and filters."""
