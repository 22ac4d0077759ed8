"""The kinds of events by what they are about; `bough.events.model` has all of them."""
