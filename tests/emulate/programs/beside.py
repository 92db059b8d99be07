"""A module that preloaded.py imports."""

NAME = "beside"
