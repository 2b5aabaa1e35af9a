"""Agents in the box: trained policies that come with the package, each with a card that says how it was made."""
