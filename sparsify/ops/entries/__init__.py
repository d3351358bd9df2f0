"""The same entries elsewhere: slices, joins, reshapes, and entries at given coordinates."""
