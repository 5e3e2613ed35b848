"""The small files of a store and the names of all of them: what is written in text, and how it is replaced whole."""
