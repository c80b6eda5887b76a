"""UniDisc's layouts: TensorDicts of memory maps, written by exports and read with their parts."""
