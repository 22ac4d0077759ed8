"""Kinds of events by topic. `bough.events.model` exports all of them."""
