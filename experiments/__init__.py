"""Measurements behind the figures that the project states; development tools, not shipped."""
