"""A run as people see it: while it goes on, from outside, and after its end."""
