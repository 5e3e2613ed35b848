"""Consumer groups: how far each has read, and which of its workers reads which partition."""
