"""The scripts that draw the figures and tables of the paper again, named after them."""
