"""A report in the forms people and programs read."""
