"""Tests of the hub with real users: what they can reach, and what can break."""
