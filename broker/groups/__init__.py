"""Consumer groups: their members, their committed offsets, and which broker coordinates them."""
