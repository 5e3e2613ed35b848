"""The earliest timestamps in a sealed segment. A time index has only the latest ones.

file     the file with these timestamps: query planners read it, so it needs neither numpy nor a kernel
build    finds them, by reading a segment once
upkeep   makes missing files, and removes those that are not needed
"""
