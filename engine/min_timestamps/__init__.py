"""How early the records of a sealed segment are: what a time index, which says how late they are, does not tell.

file     the file that says so: read by who plans a query, so it needs neither numpy nor a kernel
build    finds it out, by reading a segment once
upkeep   makes the files that are missing, and removes those that are not needed
"""
