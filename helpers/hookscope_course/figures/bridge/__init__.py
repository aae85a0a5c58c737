"""The bridge: two ranks as two rails, with all_reduce between them, and a hook that is dragged along both."""
