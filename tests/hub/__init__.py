"""The hub: a class on one machine, with real users, what they can reach and what can break."""
