"""Small clients for programs: the same calls for a store that is opened here and for one that is mounted."""
