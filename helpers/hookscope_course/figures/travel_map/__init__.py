"""The travel map: guess what becomes of a hook at each station of its model, and travel there."""
