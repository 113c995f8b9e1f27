"""The second of two servers: it lifts the masks off a round's sum, adds its own noise, and never sees an answer."""
